// Echo with the asynchronous sockets of .NET: a server and twelve clients, each of which sends while it receives.
using System;
using System.Collections.Generic;
using System.Linq;
using System.Net;
using System.Net.Sockets;
using System.Security.Cryptography;
using System.Text;
using System.Threading.Tasks;

static class Echo
{
    const int Port = 7043;

    static async Task Serve(TcpClient peer)
    {
        using (peer)
        {
            var stream = peer.GetStream();
            var b = new byte[65536];
            int n;
            while ((n = await stream.ReadAsync(b, 0, b.Length)) > 0) await stream.WriteAsync(b, 0, n);
        }
    }

    static byte[] Message(int n, int i)
    {
        var one = n + "-" + i + ";";
        return Encoding.ASCII.GetBytes(string.Concat(Enumerable.Repeat(one, 1 + i * 37 % 4000)));
    }

    static async Task SendAll(NetworkStream to, int n)
    {
        for (int i = 0; i < 120; i++)
        {
            var raw = Message(n, i);
            await to.WriteAsync(raw, 0, raw.Length);
        }
    }

    static async Task<string> Client(int n)
    {
        using (var c = new TcpClient())
        using (var sha = SHA256.Create())
        {
            await c.ConnectAsync(IPAddress.Loopback, Port);
            var stream = c.GetStream();
            var sending = SendAll(stream, n);
            var all = new StringBuilder();
            for (int i = 0; i < 120; i++)
            {
                var want = Message(n, i);
                var got = new byte[want.Length];
                for (int at = 0; at < got.Length;)
                {
                    int more = await stream.ReadAsync(got, at, got.Length - at);
                    if (more == 0) throw new Exception("the end");
                    at += more;
                }
                if (!got.SequenceEqual(want)) throw new Exception("other bytes");
                all.Append(Convert.ToBase64String(sha.ComputeHash(got)));
            }
            await sending;
            return Convert.ToBase64String(sha.ComputeHash(Encoding.ASCII.GetBytes(all.ToString())));
        }
    }

    static async Task Listen()
    {
        var listener = new TcpListener(IPAddress.Loopback, Port);
        listener.Start();
        for (;;)
        {
            var ignored = Serve(await listener.AcceptTcpClientAsync());
        }
    }

    static void Main(string[] args)
    {
        if (args[0] == "server") Listen().Wait();
        var clients = Enumerable.Range(0, 12).Select(Client).ToArray();
        Task.WaitAll(clients);
        Console.WriteLine(string.Join(" ", clients.Select(c => c.Result)));
    }
}
