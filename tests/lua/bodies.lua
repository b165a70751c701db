-- Owns: wrk's comparison of every answer's body with the file that is named behind the address.
local threads = {}

function setup(thread)
    table.insert(threads, thread)
end

-- What a thread counts has to be global: done() runs elsewhere, and asks for it by name.
function init(args)
    local file = assert(io.open(args[1], "rb"))
    wanted = file:read("*a")
    file:close()
    same, different = 0, 0
end

function response(status, headers, body)
    if status == 200 and body == wanted then
        same = same + 1
    else
        different = different + 1
    end
end

function done(summary, latency, requests)
    local all, other = 0, 0
    for _, thread in ipairs(threads) do
        all = all + thread:get("same")
        other = other + thread:get("different")
    end
    print(("bodies: %d same, %d different"):format(all, other))
end
