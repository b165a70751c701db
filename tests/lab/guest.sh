# Set-up of a guest, sourced by nobody: run by init. Soft RoCE on eth0, the kernel's SMC-R, two counters
# that tell what goes over RDMA from what goes over TCP; then the agent, until the machine says "off".
hostname "lab-$lab_role"
mkdir -p /lib/modules
[ -e "/lib/modules/$(uname -r)" ] || ln -s "$lab_kernel/lib/modules/$(uname -r)" /lib/modules/
for module in crc32_generic rdma_rxe ib_uverbs rdma_ucm smc smc_diag tcp_diag inet_diag unix_diag nf_tables; do
    modprobe $module || echo "guest: no module $module"
done
ip link set lo up
ip link set eth0 mtu "$lab_mtu"
ip addr add "$lab_ip/24" dev eth0
ip link set eth0 up
rdma link add rxe0 type rxe netdev eth0
ulimit -l unlimited
mkdir -p /run/lab
nft -f - <<'RULES'
table inet lab {
    counter roce { }
    counter stream { }
    chain in { type filter hook input priority 0; udp dport 4791 counter name roce; iifname "eth0" tcp sport 4000-9999 counter name stream; iifname "eth0" tcp dport 4000-9999 counter name stream; }
    chain out { type filter hook output priority 0; udp dport 4791 counter name roce; oifname "eth0" tcp sport 4000-9999 counter name stream; oifname "eth0" tcp dport 4000-9999 counter name stream; }
    chain cut { type filter hook prerouting priority -300; }
}
RULES
exec /usr/bin/python3 "$lab_here/agent.py"
