// `serve ADDRESS PORT`, or `run ADDRESS PORT CONNECTIONS ROUNDS BYTES`: Node's http, bodies that come back, compared.
const http = require('http'), crypto = require('crypto');
const [, , what, address, port, connections, rounds, bytes] = process.argv;

function serve() {
    http.createServer((ask, answer) => ask.pipe(answer)).listen(+port, address, () => console.log('serving'));
}

function post(agent, body) {
    return new Promise((done, failed) => {
        const ask = http.request({ agent, host: address, port, method: 'POST', path: '/', headers: { 'Content-Length': body.length } }, answer => {
            const parts = [];
            answer.on('data', part => parts.push(part)).on('end', () => done(Buffer.concat(parts)));
        });
        ask.on('error', failed).end(body);
    });
}

async function one() {
    const agent = new http.Agent({ keepAlive: true, maxSockets: 1 });
    for (let i = 0; i < rounds; i++) {
        const body = crypto.randomBytes(+bytes);
        if (!body.equals(await post(agent, body))) throw new Error('another body came back');
    }
    agent.destroy();
}

async function run() {
    await Promise.all(Array.from({ length: +connections }, one));
    console.log('ok', connections * rounds * bytes);
}

({ serve, run })[what]();
