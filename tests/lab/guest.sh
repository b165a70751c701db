# Set-up of a guest, sourced by nobody: run by init. Soft RoCE on eth0, the kernel's SMC-R, counters
# that tell what goes over RDMA from what goes over TCP; then the agent, until the machine says "off".
# eth1 leads to the other guest as well; cases of two devices put soft RoCE on it.
hostname "lab-$lab_role"
mkdir -p /lib/modules
[ -e "/lib/modules/$(uname -r)" ] || ln -s "$lab_kernel/lib/modules/$(uname -r)" /lib/modules/
for module in crc32_generic rdma_rxe ib_uverbs rdma_ucm smc smc_diag tcp_diag inet_diag unix_diag nf_tables nft_objref nft_set_hash virtio_console; do
    modprobe $module || echo "guest: no module $module"
done
ip link set lo up
ip link set eth0 mtu "$lab_mtu"
ip addr add "$lab_ip/24" dev eth0
ip link set eth0 up
ip link set eth1 mtu "$lab_mtu"
ip addr add "$lab_second/24" dev eth1
ip link set eth1 up
rdma link add rxe0 type rxe netdev eth0
ulimit -l unlimited
mkdir -p /run/lab
nft -f - <<'RULES'
table inet lab {
    counter roce { }
    counter roce0 { }
    counter roce1 { }
    counter stream { }
    counter requests { }
    counter received { }
    chain in { type filter hook input priority 0; udp dport 4791 counter name roce; udp dport 4791 jump kinds; iifname "eth0" udp dport 4791 counter name roce0; iifname "eth1" udp dport 4791 counter name roce1; iifname "eth0" tcp sport 4000-9999 counter name stream; iifname "eth0" tcp dport 4000-9999 counter name stream; }
    chain out { type filter hook output priority 0; udp dport 4791 counter name roce; udp dport 4791 jump kinds; oifname "eth0" udp dport 4791 counter name roce0; oifname "eth1" udp dport 4791 counter name roce1; oifname "eth0" tcp sport 4000-9999 counter name stream; oifname "eth0" tcp dport 4000-9999 counter name stream; }
    # The last packet of each work request by its operation code (RC), and those that take a receive.
    chain kinds { @th,64,8 { 0x02, 0x03, 0x04, 0x05, 0x08, 0x09, 0x0a, 0x0b, 0x0c } counter name requests; @th,64,8 { 0x02, 0x03, 0x04, 0x05, 0x09, 0x0b } counter name received; }
    chain cut { type filter hook prerouting priority -300; }
}
RULES
exec /usr/bin/python3 "$lab_here/agent.py"
