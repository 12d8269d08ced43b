#!/usr/bin/env bash
# Inside an emulated host: network and soft-RoCE, then its part. usage: guest.sh NUMBER BINARIES [ARGUMENT...]
number=$1
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/tmp
ulimit -l unlimited
# As is usual on servers. With huge pages for everything, a thread's stack alone hides what a link may leave behind.
echo madvise >/sys/kernel/mm/transparent_hugepage/enabled
ip link set lo up
ip link set eth0 mtu 4200 up
ip addr add "10.7.0.$number/24" dev eth0
ip -6 addr add "fd07::$number/64" dev eth0 nodad
rdma link add rxe0 type rxe netdev eth0 || echo "guest $number: rdma link add failed"
if ((number == 1)); then
  exec /usr/bin/python3 -B /mnt/tests/rdma_vm/scenarios.py "${@:2}" >/tmp/out/driver.log 2>&1
else
  exec /usr/bin/python3 -B /mnt/tests/rdma_vm/agent.py >/tmp/out/agent.log 2>&1
fi
