-- Tarantool: requests of many fibers over a few connections, answered out of turn.
local net, fiber, digest = require('net.box'), require('fiber'), require('digest')
if arg[1] == 'server' then
    box.cfg{log_level = 2, wal_mode = 'none', work_dir = arg[2]}
    box.schema.user.grant('guest', 'super')
    local t = box.schema.space.create('t')
    t:create_index('i')
    function slow(n) fiber.sleep(n % 7 / 1000) return string.rep('r' .. n, n % 900) end
    box.cfg{listen = '127.0.0.1:7044'}
    return
end
local connections, found, left = {}, {}, fiber.channel(100)
for i = 1, 4 do connections[i] = net.connect('127.0.0.1:7044') end
for f = 1, 24 do
    fiber.create(function()
        local c, all = connections[f % 4 + 1], {}
        for i = 1, 150 do
            local n = f * 1000 + i
            c.space.t:insert{n, string.rep('v' .. n, n % 3000)}
            all[#all + 1] = c.space.t:get(n)[2]
            all[#all + 1] = c:call('slow', {n})
        end
        found[f] = digest.sha1_hex(table.concat(all))
        left:put(f)
    end)
end
for _ = 1, 24 do assert(left:get(100)) end
print(table.concat(found, ' '))
os.exit(0)
