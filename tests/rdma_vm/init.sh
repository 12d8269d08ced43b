#!/bin/busybox sh
# First process of an emulated host: modules, this machine's files by 9p, then guest.sh inside them.
export PATH=/bin
/bin/busybox --install -s /bin
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
while read -r module; do insmod "/modules/$module" || echo "insmod $module failed"; done </modules/order
share() { mount -t 9p -o "trans=virtio,version=9p2000.L,msize=262144,$3" "$1" "$2"; }
share host /host ro,cache=loose || exec poweroff -f
share repo /host/mnt ro,cache=loose
for folder in tmp run dev/shm; do mount -t tmpfs tmpfs "/host/$folder" 2>/dev/null; done
mount --bind /proc /host/proc
mount --bind /sys /host/sys
mount --bind /dev /host/dev
mkdir -p /host/dev/shm /host/dev/pts /host/tmp/out
mount -t tmpfs tmpfs /host/dev/shm
share out /host/tmp/out rw,cache=none
for word in $(cat /proc/cmdline); do
  case $word in
    host=*) number=${word#host=} ;;
    bin=*) binaries=${word#bin=} ;;
    arg=*) arguments="$arguments ${word#arg=}" ;;
  esac
done
chroot /host /bin/bash /mnt/tests/rdma_vm/guest.sh "$number" "$binaries" $arguments
sync
poweroff -f
