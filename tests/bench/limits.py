"""What the library may add to a count: the limits of the counted rows, checked in so that a dearer call is seen.

Each is the count under the library less the one without it on 24 November 2026 (x86_64, glibc 2.36, gcc 12, valgrind 3.19), and 5 % room.
Those marked ~ differ from run to run, by the share of what the library does after so many microseconds (looks at its peer, asks the
clock, polls): of three to five runs on a busy machine the largest counts. The others are the same at each run.

A change that lowers a count lowers its limit; one that raises it says why."""

ADDED = {
    # instructions of one call
    "instr_send": 278,  # ~ 234 to 264: the peer is one that waits in its receives, whose sleep word is looked at
    "instr_recv": 220,  # 209
    "instr_epoll_wait": 500,  # ~ 416 to 475
    "instr_sendrecv": 456,  # ~ 404 to 434
    "instr_epoll": 878,  # ~ 797 to 836
    "instr_epoll100": 903,  # ~ 781 to 860
    "instr_epoll1000": 883,  # ~ 834 to 841
    "instr_64k": 25780,  # 24,550: the copies, 16 bytes at a time
    "instr_duplex": 25780,  # 24,550
    "instr_byte1": 282,  # ~ 254 to 268, as instr_send
    # of one connection, both ends
    "instr_short": 3265,  # 3,109: a close looks who else holds the connection before it says that it is over
    "instr_short_srvclose": 3265,  # 3,109: a close looks who else holds the connection before it says that it is over
    "instr_short_epoll": 9120,  # 8,688: what leaves or enters a set is also looked up where exec and numbers of other files matter
    "instr_short_16": 15400,  # ~ 11,630 to 14,670
    "instr_short_64": 198400,  # ~ 188,500 to 188,900, nearly all of it the switch to memory
    # of one round trip with a plain peer, at the accelerated end
    "instr_plain_server": 727,  # ~ 657 to 692
    "instr_plain_client": 812,  # ~ 159 to 773
    # of one call on what is no socket
    "instr_pipe": 18,  # 17
    "instr_file": 18,  # 17
    "instr_null": 18,  # 17
    # of a whole program
    "instr_start": 217600,  # 207,244
    "instr_redis": 1580,  # ~ 1,460 to 1,504 on a busy machine, 600 on a quiet one: what the server polls is in it
    # system calls
    "calls_start": 32,  # 31
    "calls_short_64": 112,  # ~ 104: those of the switch to memory
}


def added(name):
    """The goal of the row `name`: so much more than without the library."""
    return ("delta", ADDED[name])
