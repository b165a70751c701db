// SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0-only
/*
 * The TCP option of RFC 7609 (kind 254, E2 D4 C3 D9) for sockets that a process has marked.
 *
 *   setsockopt(fd, 0x534d, 1, &one, 4)   mark, before connect() or listen(); zero unmarks
 *   getsockopt(fd, 0x534d, 1, &u32)      is it marked: abi << 16 | marked
 *   getsockopt(fd, 0x534d, 2, &u32)      what the handshake has shown: the VERDICT_ bits
 *
 * Both calls need no privilege. A SYN of a marked socket carries the option; a SYN-ACK of a marked
 * listener carries it if the SYN did. Towards our own kind it is 8 bytes long, with a role and a
 * version behind the magic; towards others, 6. Kernel SMC takes any even length of at least 6.
 * SYN and SYN-ACK have different roles: whoever merely echoes our option is not taken for a peer.
 *
 * Whoever sees VERDICT_PEER and VERDICT_WE together knows that the other end knows it too. In each
 * doubtful case one of the two is missing: better no acceleration than a byte to a stranger.
 */
#include <linux/bpf.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

/* ---- shared with src/abi.rs ------------------------------------------------------------------ */
#define LEVEL 0x534d
#define OPT_MARK 1
#define OPT_VERDICT 2
#define ABI 1

#define VERDICT_KNOWN 0x01u  /* the handshake of this connection was seen */
#define VERDICT_PEER 0x02u   /* the peer sent the option */
#define VERDICT_WE 0x04u     /* we sent it */
#define VERDICT_ACTIVE 0x08u /* we called connect() */
#define VERDICT_OURS 0x10u   /* the peer is libsmcr; bits 8 to 15 are its version */
#define VERDICT_VERSION_SHIFT 8

enum count {
    COUNT_CONNECT, /* marked connect() */
    COUNT_LISTEN,  /* marked listen() */
    COUNT_SYN,     /* option written on a SYN, retransmissions included */
    COUNT_SYNACK,  /* option written on a SYN-ACK */
    COUNT_ACTIVE,  /* established by us, the peer has it */
    COUNT_PASSIVE, /* accepted, both have it */
    COUNT_COOKIE,  /* not answered: SYN cookie */
    COUNT_REFUSED, /* not answered: Fast Open, MD5 or AO in the SYN */
    COUNT_SPACE,   /* no room in the header */
    COUNT_ECHO,    /* our own option came back */
    COUNT_RETRY,   /* left out from the third SYN on */
    COUNTS = 16
};

/* ---- what the loader may set (only tests do) ------------------------------------------------- */
const volatile __u8 option_length = 8;
const volatile __u8 role_syn = 0x51;
const volatile __u8 role_synack = 0xae;
const volatile __u8 version = 1;

/* ---- state ----------------------------------------------------------------------------------- */
struct mark {
    __u32 marked;
    __u32 verdict;
};

struct {
    __uint(type, BPF_MAP_TYPE_SK_STORAGE);
    __uint(map_flags, BPF_F_NO_PREALLOC | BPF_F_CLONE); /* accepted sockets start with a copy */
    __type(key, int);
    __type(value, struct mark);
} marks SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(max_entries, COUNTS);
    __type(key, __u32);
    __type(value, __u64);
} counts SEC(".maps");

/* For the loader alone: fingerprint of the object, id of the cgroup. */
struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(max_entries, 2);
    __type(key, __u32);
    __type(value, __u64);
} about SEC(".maps");

static __always_inline void count(__u32 which)
{
    __u64 *n = bpf_map_lookup_elem(&counts, &which);
    if (n)
        __sync_fetch_and_add(n, 1);
}

static __always_inline struct mark *mark_of(struct bpf_sock *sk, __u64 flags)
{
    return sk ? bpf_sk_storage_get(&marks, sk, 0, flags) : 0;
}

/* ---- the option ------------------------------------------------------------------------------ */
#define KIND 254
#define MAGIC 0xe2d4c3d9
#define MIN_LENGTH 6
#define FAST_OPEN 34
#define MD5 19
#define AO 29
#define ENOSPC 28

#define FLAG_SYN 0x02
#define FLAGS_SYN_ACK 0x12

struct option {
    __u8 kind;
    __u8 length;
    __be32 magic;
    __u8 role;
    __u8 version;
} __attribute__((packed));

enum peer { NONE, ECHO, REFUSED, OTHER, OURS };

/* Who sent the option in this header: the SYN's (flags) or the current one's (0)? */
static __always_inline enum peer peer_in(struct bpf_sock_ops *ctx, __u64 flags, __u8 expected, __u8 echoed,
                                         __u8 *peer_version)
{
    struct option o = { KIND, MIN_LENGTH, bpf_htonl(MAGIC), 0, 0 };
    long found = bpf_load_hdr_opt(ctx, &o, sizeof(o), flags);

    /* -ENOSPC: there, and longer than what we look at. */
    if (found < 0 && found != -ENOSPC)
        return NONE;
    if (o.length < MIN_LENGTH || (o.length & 1))
        return NONE;
    if (o.length != sizeof(o))
        return OTHER;
    if (o.role != expected)
        return o.role == echoed ? ECHO : OTHER;
    *peer_version = o.version;
    return OURS;
}

static __always_inline int syn_has(struct bpf_sock_ops *ctx, __u8 kind)
{
    __u8 o[40] = { kind, 0 };
    long found = bpf_load_hdr_opt(ctx, o, sizeof(o), BPF_LOAD_HDR_OPT_TCP_SYN);

    return found > 0 || found == -ENOSPC;
}

/* Whom does a SYN-ACK of a marked listener answer? The same for every copy of one SYN. */
static __always_inline enum peer answered(struct bpf_sock_ops *ctx, __u8 *peer_version)
{
    enum peer peer = peer_in(ctx, BPF_LOAD_HDR_OPT_TCP_SYN, role_syn, role_synack, peer_version);

    if (peer != OTHER && peer != OURS)
        return NONE;
    /* Data before the handshake ends cannot be taken back. The other two take the room that the
     * answer needs; without them it always fits. */
    if (syn_has(ctx, FAST_OPEN) || syn_has(ctx, MD5) || syn_has(ctx, AO))
        return REFUSED;
    return peer;
}

/* Length of the option that this header gets, 0 for none. */
static __always_inline __u32 wanted(struct bpf_sock_ops *ctx, int tell)
{
    __u32 flags = ctx->skb_tcp_flags;
    enum peer peer;
    struct mark *m;
    __u8 ignored;

    if ((flags & FLAGS_SYN_ACK) == FLAGS_SYN_ACK) {
        if (ctx->args[0] == BPF_WRITE_HDR_TCP_SYNACK_COOKIE) {
            if (tell)
                count(COUNT_COOKIE);
            return 0;
        }
        peer = answered(ctx, &ignored);
        if (peer == REFUSED && tell)
            count(COUNT_REFUSED);
        if (peer != OTHER && peer != OURS)
            return 0;
        return peer == OURS ? option_length : MIN_LENGTH;
    }
    if (!(flags & FLAG_SYN))
        return 0;
    /* The callback may be on for the sake of another program: look at the mark. */
    m = mark_of(ctx->sk, 0);
    if (!m || !m->marked)
        return 0;
    /* A path that drops such SYNs must not keep the program from connecting. */
    if (ctx->total_retrans >= 2) {
        if (tell)
            count(COUNT_RETRY);
        return 0;
    }
    return option_length;
}

static __always_inline void write(struct bpf_sock_ops *ctx)
{
    int answer = (ctx->skb_tcp_flags & FLAGS_SYN_ACK) == FLAGS_SYN_ACK;
    struct option o = { KIND, sizeof(o), bpf_htonl(MAGIC), 0, version };
    __u32 length = wanted(ctx, 0);
    long failed;

    if (!length)
        return;
    o.role = answer ? role_synack : role_syn;
    if (length == sizeof(o)) {
        failed = bpf_store_hdr_opt(ctx, &o, sizeof(o), 0);
    } else {
        o.length = MIN_LENGTH;
        failed = bpf_store_hdr_opt(ctx, &o, MIN_LENGTH, 0);
    }
    count(failed ? COUNT_SPACE : answer ? COUNT_SYNACK : COUNT_SYN);
}

static __always_inline void callbacks(struct bpf_sock_ops *ctx, int on)
{
    __u32 flags = ctx->bpf_sock_ops_cb_flags & ~BPF_SOCK_OPS_WRITE_HDR_OPT_CB_FLAG;

    bpf_sock_ops_cb_flags_set(ctx, on ? flags | BPF_SOCK_OPS_WRITE_HDR_OPT_CB_FLAG : flags);
}

static __always_inline __u32 verdict_of(enum peer peer, __u8 peer_version)
{
    switch (peer) {
    case OURS:
        return VERDICT_PEER | VERDICT_OURS | (__u32)peer_version << VERDICT_VERSION_SHIFT;
    case OTHER:
        return VERDICT_PEER;
    default:
        return 0;
    }
}

SEC("sockops")
int smcr_sockops(struct bpf_sock_ops *ctx)
{
    int one = 1;
    __u8 peer_version = 0;
    enum peer peer;
    struct mark *m;
    __u32 length;

    switch (ctx->op) {
    case BPF_SOCK_OPS_TCP_CONNECT_CB:
        m = mark_of(ctx->sk, 0);
        if (!m)
            break;
        m->verdict = 0; /* of an earlier connection of the same socket */
        if (!m->marked)
            break;
        m->verdict = VERDICT_WE | VERDICT_ACTIVE;
        count(COUNT_CONNECT);
        callbacks(ctx, 1);
        break;

    case BPF_SOCK_OPS_TCP_LISTEN_CB:
        m = mark_of(ctx->sk, 0);
        if (!m)
            break;
        m->verdict = 0;
        /* Without the saved SYN the accepted socket could not tell; then it does not answer. */
        if (!m->marked || bpf_setsockopt(ctx, 6 /* SOL_TCP */, 27 /* TCP_SAVE_SYN */, &one, sizeof(one))) {
            m->marked = 0;
            break;
        }
        count(COUNT_LISTEN);
        callbacks(ctx, 1);
        break;

    case BPF_SOCK_OPS_HDR_OPT_LEN_CB:
        length = wanted(ctx, 1);
        if (length && bpf_reserve_hdr_opt(ctx, length, 0))
            count(COUNT_SPACE);
        break;

    case BPF_SOCK_OPS_WRITE_HDR_OPT_CB:
        write(ctx);
        break;

    case BPF_SOCK_OPS_ACTIVE_ESTABLISHED_CB:
        m = mark_of(ctx->sk, 0);
        if (!m || !(m->verdict & VERDICT_ACTIVE))
            break;
        peer = peer_in(ctx, 0, role_synack, role_syn, &peer_version);
        m->verdict |= VERDICT_KNOWN | verdict_of(peer, peer_version);
        if (peer == ECHO)
            count(COUNT_ECHO);
        else if (peer != NONE)
            count(COUNT_ACTIVE);
        callbacks(ctx, 0); /* or every packet would come by */
        break;

    case BPF_SOCK_OPS_PASSIVE_ESTABLISHED_CB:
        m = mark_of(ctx->sk, 0);
        if (!m || !m->marked)
            break;
        m->marked = 0; /* the listener's: it says nothing of a later connect() of this socket */
        peer = answered(ctx, &peer_version);
        m->verdict = VERDICT_KNOWN | verdict_of(peer, peer_version);
        /* The callback, which the child has from the listener, is what wrote our answer. */
        if ((m->verdict & VERDICT_PEER) && (ctx->bpf_sock_ops_cb_flags & BPF_SOCK_OPS_WRITE_HDR_OPT_CB_FLAG)) {
            m->verdict |= VERDICT_WE;
            count(COUNT_PASSIVE);
        }
        callbacks(ctx, 0);
        break;
    }
    return 1;
}

static __always_inline int is_tcp(struct bpf_sock *sk)
{
    return sk && sk->type == 1 /* SOCK_STREAM */ && sk->protocol == 6 /* IPPROTO_TCP */;
}

#define PASS 1
#define REFUSE 0 /* EPERM */

SEC("cgroup/setsockopt")
int smcr_setsockopt(struct bpf_sockopt *ctx)
{
    __u8 *value = ctx->optval, *end = ctx->optval_end;
    int none = 0;
    struct mark *m;
    __u32 on;

    if (ctx->level != LEVEL || ctx->optname != OPT_MARK || !is_tcp(ctx->sk) || value + 4 > end)
        return PASS; /* the kernel says ENOPROTOOPT to what is ours and wrong */
    on = *(__u32 *)value != 0;

    switch (ctx->sk->state) {
    case BPF_TCP_CLOSE:
        break;
    case BPF_TCP_LISTEN:
        m = mark_of(ctx->sk, 0);
        if (on) {
            /* A SYN may have been answered without the option a moment ago, and the accepted
             * socket could not know: a listener is marked before listen() or not at all. */
            if (!m || !m->marked)
                return REFUSE;
            break;
        }
        if (!m || !m->marked)
            break;
        /* TCP_BPF_SOCK_OPS_CB_FLAGS, since 6.12. Before that an answer cannot be called back:
         * say so, and leave the mark, which is what SYN-ACKs go on saying. */
        if (bpf_setsockopt(ctx->sk, 6 /* SOL_TCP */, 1008, &none, sizeof(none)))
            return REFUSE;
        break;
    default:
        if (on)
            return REFUSE;
    }
    m = mark_of(ctx->sk, on ? BPF_SK_STORAGE_GET_F_CREATE : 0);
    if (on && !m)
        return REFUSE;
    if (m)
        m->marked = on;
    ctx->optlen = -1; /* done: not for the kernel's own handler */
    return PASS;
}

SEC("cgroup/getsockopt")
int smcr_getsockopt(struct bpf_sockopt *ctx)
{
    __u8 *value = ctx->optval, *end = ctx->optval_end;
    struct mark *m;
    __u32 answer;

    if (ctx->level != LEVEL || !is_tcp(ctx->sk) || value + 4 > end)
        return PASS;
    m = mark_of(ctx->sk, 0);
    if (ctx->optname == OPT_MARK)
        answer = ABI << 16 | (m && m->marked);
    else if (ctx->optname == OPT_VERDICT)
        answer = m ? m->verdict : 0;
    else
        return PASS;
    *(__u32 *)value = answer;
    /* Volatile: clang would merge the two into one store of 8 bytes, which the verifier refuses. */
    *(volatile int *)&ctx->optlen = 4;
    *(volatile int *)&ctx->retval = 0;
    return PASS;
}

char _license[] SEC("license") = "Dual MIT/GPL";
