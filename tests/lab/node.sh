#!/bin/sh
# First process of a lab node: turns new namespaces into a machine, says "ready", and becomes its init.
# Runs as: nsenter --net=… unshare --mount --uts --ipc --pid --fork sh node.sh FOLDER RUN HOSTNAME DEVICE ENGINE TOOLS [KEEP…]
#   FOLDER  the node's own files, on a disk     RUN     becomes /run     DEVICE  its network device
#   ENGINE, TOOLS  unpacked packages            KEEP    folders that must stay visible, such as the checkout
# Everything mounted here dies with the mount namespace, so there is nothing to undo.
set -eu
folder=$1 run=$2 name=$3 device=$4 engine=$5 tools=$6
shift 6

hostname "$name"
ip link set lo up

number=0
for keep in "$@"; do # set aside what the mounts below would cover
    mkdir -p "$folder/keep/$number"
    mount --rbind "$keep" "$folder/keep/$number"
    number=$((number + 1))
done

overlay() { # overlay FOLDER LOWER: FOLDER shows LOWER, and what the node writes there stays with the node
    mkdir -p "$folder/upper$1" "$folder/work$1"
    mount -t overlay lab -o "lowerdir=$2,upperdir=$folder/upper$1,workdir=$folder/work$1" "$1"
}
overlay /usr "$engine/usr:$tools/usr:/usr"
overlay /etc "/etc:$tools/etc"
overlay /var/lib /var/lib
mkdir -p /var/lib/docker
mount --bind "$folder/docker" /var/lib/docker
mount --bind "$folder/root" /root
mount --bind "$folder/home" /home
mount --bind "$run" /run
mkdir -p /run/sshd /run/lock

number=0
for keep in "$@"; do
    mkdir -p "$keep"
    mount --move "$folder/keep/$number" "$keep"
    number=$((number + 1))
done

hardware=$folder/hardware
mount -t proc proc /proc
mount --bind "$hardware/meminfo" /proc/meminfo
mount --bind "$hardware/cpuinfo" /proc/cpuinfo

# A sysfs mount shows the network devices of the namespace that made it. A second one stays as it is, to point into.
mkdir -p /run/lab/sys /run/lab/cgroup
mount -t sysfs sysfs /run/lab/sys
mount --rbind /sys/fs/cgroup /run/lab/cgroup
mount -t sysfs sysfs /sys
mount --move /run/lab/cgroup /sys/fs/cgroup
mount --bind "$hardware/firmware" /sys/firmware
mount --bind "$hardware/online" /sys/devices/system/cpu/online
if [ -e "$hardware/net" ]; then # a radio is a device with a folder called wireless
    for file in /run/lab/sys/devices/virtual/net/"$device"/*; do
        ln -sfn "$file" "$hardware/net/${file##*/}"
    done
    mount --bind "$hardware/net" "/sys/devices/virtual/net/$device"
fi
mount --bind "$hardware/class" /sys/class
mount --bind /run/lab/sys/class/net /sys/class/net

echo ready
exec tini -s -- sleep 2147483647 >/dev/null 2>&1 </dev/null
