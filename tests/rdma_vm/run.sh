#!/usr/bin/env bash
# Two emulated hosts with soft-RoCE between them: boots them, runs scenarios.py over both, says what held.
# usage: tests/rdma_vm/run.sh [--full] [--only NAME,...] [--build DIR] [--work DIR]
# Exit codes: 0 all held, 1 something did not, 77 the hosts cannot be had here (the reason is printed).
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")/../.."
repo=$PWD
build=build/release
work=""
arguments=()
limit=420  # seconds for both hosts, boot included; the full list takes longer
while (($#)); do
  case $1 in
    --full) arguments+=(--full); limit=2700 ;;
    --only) arguments+=(--only "$2"); shift ;;
    --build) build=$2; shift ;;
    --work) work=$2; shift ;;
    *) sed -n '2,4p' "$0" >&2; exit 2 ;;
  esac
  shift
done
work=${work:-$build/rdma_vm}
skip() {
  echo "SKIPPED: rdma_vm: $*"
  exit 77
}

# Before anything that this machine may lack: what was not built is a fault, and no reason to skip.
for binary in tributary e2e_client rdma_vm_peer rdma_vm_conformance; do
  [[ -x $build/bin/$binary ]] || { echo "rdma_vm: $build/bin/$binary is not built"; exit 1; }
done
for tool in qemu-system-x86_64 busybox depmod modprobe dpkg-deb python3; do
  command -v "$tool" >/dev/null || skip "$tool is missing (apt-get install qemu-system-x86 busybox-static kmod)"
done
mkdir -p "$work"
work=$(readlink -f "$work")

# The newest kernel that Debian has for this release, once. Nothing of it is committed.
if [[ ! -e $work/kernel/ready ]]; then
  package=$(apt-cache depends --important linux-image-amd64 2>/dev/null | awk '/Depends:/ {print $2; exit}')
  [[ -n $package ]] || skip "apt knows no linux-image-amd64 (run apt-get update)"
  rm -rf "$work/kernel"
  mkdir -p "$work/kernel"
  (cd "$work/kernel" && apt-get download -q "$package" >/dev/null 2>&1) || skip "$package cannot be downloaded"
  dpkg-deb -x "$work/kernel/$package"_*.deb "$work/kernel"
  rm "$work/kernel/$package"_*.deb
  touch "$work/kernel/ready"
fi
version=$(basename "$work"/kernel/lib/modules/*)

# An initramfs of busybox, the modules and a script that mounts this machine's files and enters them.
initramfs() {
  local root=$work/initramfs module path
  rm -rf "$root"
  mkdir -p "$root"/{bin,proc,sys,dev,modules,host}
  cp "$(command -v busybox)" "$root/bin/busybox"
  depmod -b "$work/kernel" "$version"
  # crc32_generic first: rxe refuses to start without it and does not name it as a dependency.
  for module in virtio_pci virtio_net 9p 9pnet_virtio crc32_generic ib_uverbs rdma_ucm rdma_rxe sch_netem; do
    modprobe -d "$work/kernel" -S "$version" --show-depends "$module" | awk '$1 == "insmod" {print $2}'
  done | awk '!seen[$0]++' >"$work/modules"
  while read -r path; do
    cp "$path" "$root/modules/"
    basename "$path"
  done <"$work/modules" >"$root/modules/order"
  cp tests/rdma_vm/init.sh "$root/init"
  chmod +x "$root/init"
  (cd "$root" && find . | busybox cpio -o -H newc 2>/dev/null | gzip -1 >"$work/initramfs.gz")
}
initramfs

out=$work/out
rm -rf "$out"
mkdir -p "$out"
boot() {  # NUMBER NETDEV
  exec timeout "$limit" qemu-system-x86_64 -accel tcg -cpu max -smp 1 -m 1024 -nographic -no-reboot \
    -kernel "$work"/kernel/boot/vmlinuz-"$version" -initrd "$work/initramfs.gz" \
    -append "console=ttyS0 quiet panic=-1 host=$1 bin=/mnt/${build#"$repo"/}/bin ${arguments[*]/#/arg=}" \
    -virtfs local,path=/,mount_tag=host,security_model=none,readonly=on,multidevs=remap \
    -virtfs "local,path=$repo,mount_tag=repo,security_model=none,readonly=on,multidevs=remap" \
    -virtfs "local,path=$out,mount_tag=out,security_model=none,multidevs=remap" \
    -netdev "$2" -device virtio-net-pci,netdev=n0,mac=52:54:00:00:00:0"$1",host_mtu=4200,romfile= \
    </dev/null >"$out/console$1" 2>&1
}
boot 1 "stream,id=n0,server=on,addr.type=unix,addr.path=$out/net" &
first=$!
for _ in $(seq 100); do
  [[ -S $out/net ]] && break
  sleep 0.05
done
boot 2 "stream,id=n0,server=off,addr.type=unix,addr.path=$out/net" &
second=$!
trap 'kill "$first" "$second" 2>/dev/null || true' EXIT
# The first host runs the scenarios and powers off when they are done; the second serves it.
ended=0
wait "$first" || ended=$?
kill "$second" 2>/dev/null || true
wait "$second" 2>/dev/null || true
rm -f "$out/net"

((ended != 124)) || echo "rdma_vm: stopped after $limit s, before all scenarios were done; is this machine very busy?"
if [[ ! -s $out/report ]]; then
  echo "rdma_vm: the hosts gave no report; the end of the consoles:"
  tail -n 15 "$out"/console1 "$out"/console2 | tr -d '\r'
  exit 1
fi
cat "$out/report"
[[ $(tail -n 1 "$out/report") == "rdma_vm: all held" ]]
