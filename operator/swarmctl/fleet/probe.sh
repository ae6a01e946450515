# What this machine is, as lines of KEY<tab>VALUE. Run as `sh -s` with this text on standard input, below one line that
# sets `manager` (an address), `manager_name` (one to be resolved here), or neither; probe.py does both halves.
#
# Rules: POSIX sh and no more (dash, busybox ash, bash); writes nothing; a file or a command that is missing leaves its
# key out; few processes, since starting them is most of what this costs; what a value means, its reader decides.

LC_ALL=C
export LC_ALL
# Last, so that what the login shell prefers comes first; a plain user's PATH may lack the sbin folders.
PATH=${PATH:+$PATH:}/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/snap/bin
newline='
'

has() { command -v "$1" >/dev/null 2>&1; }

# put KEY TEXT: a record for each line of the text that is not empty.
put() {
    key=$1
    IFS=$newline
    set -f
    for one in $2; do printf '%s\t%s\n' "$key" "$one"; done
    set +f
    unset IFS
}

# first FILE: its first line into $line. `read` drops the NUL that ends a devicetree string.
first() {
    line=
    [ -r "$1" ] && { IFS= read -r line <"$1"; } 2>/dev/null
}

# record KEY FILE: its first line, which may be empty: that the file exists tells something, too.
record() {
    first "$2"
    [ -r "$2" ] && printf '%s\t%s\n' "$1" "$line"
}

# find_line KEY FILE PREFIX: the first line that begins so.
find_line() {
    [ -r "$2" ] || return
    while IFS= read -r line || [ -n "$line" ]; do
        case $line in "$3"*)
            put "$1" "$line"
            break
            ;;
        esac
    done <"$2"
}

identity() {
    record hostname /proc/sys/kernel/hostname
    [ -n "$line" ] || put hostname "$(uname -n 2>/dev/null)"
    record machine_id /etc/machine-id
    [ -n "$line" ] || record machine_id /var/lib/dbus/machine-id
    put kernel_arch "$(uname -m 2>/dev/null)"
    record kernel /proc/sys/kernel/osrelease
    release=$line
    find_line system /etc/os-release PRETTY_NAME=
    record uptime /proc/uptime
    for tool in python3 ping bash curl sudo; do has $tool && put tool $tool; done
}

# userland: 32 or 64 bit. Alpine has no getconf; there the shell's own ELF header tells.
userland() {
    bits=$(getconf LONG_BIT 2>/dev/null)
    if [ -z "$bits" ]; then
        first /proc/self/exe
        case $line in
        ?ELF"$(printf '\001')"*) bits=32 ;;
        ?ELF"$(printf '\002')"*) bits=64 ;;
        esac
    fi
    put long_bit "$bits"
}

processor() {
    record cores /sys/devices/system/cpu/online
    [ -n "$line" ] || put cores_count "$(getconf _NPROCESSORS_ONLN 2>/dev/null || nproc 2>/dev/null)"
    [ -r /proc/cpuinfo ] || return
    seen=
    # The cores are alike: on a PC the first one's flags end it; an ARM board's revision stands below all of them.
    while IFS= read -r line; do
        case $line in
        'model name'*) case $seen in *m*) ;; *) seen=m$seen && put cpu "$line" ;; esac ;;
        Features*) case $seen in *f*) ;; *) seen=f$seen && put cpu "$line" ;; esac ;;
        Revision*) put cpu "$line" ;;
        flags*)
            put cpu "$line"
            break
            ;;
        esac
    done </proc/cpuinfo
}

memory() {
    find_line memory /proc/meminfo MemTotal:
    record memory_limit /sys/fs/cgroup/memory.max
    record memory_limit /sys/fs/cgroup/memory/memory.limit_in_bytes
    record cgroup2 /sys/fs/cgroup/cgroup.controllers
    find_line cgroup1 /proc/cgroups memory
}

form() {
    record model /sys/firmware/devicetree/base/model
    compatible=/sys/firmware/devicetree/base/compatible
    [ -r $compatible ] && put compatible "$(tr '\0' '\n' <$compatible 2>/dev/null)"
    record dmi_product /sys/class/dmi/id/product_name
    record dmi_vendor /sys/class/dmi/id/sys_vendor
    record chassis_type /sys/class/dmi/id/chassis_type
    [ -d /sys/class/power_supply ] && put power_supplies known
    for supply in /sys/class/power_supply/*; do
        first "$supply/type"
        [ "$line" = Battery ] || continue
        first "$supply/scope"
        scope=$line
        first "$supply/present"
        put battery "${scope:--} ${line:--} ${supply##*/}"
    done
}

virtualization() {
    record hypervisor /sys/hypervisor/type
    if has systemd-detect-virt; then
        put virtualization "$(systemd-detect-virt 2>/dev/null)"
        return
    fi
    record container /run/systemd/container
    [ -e /.dockerenv ] && put container docker
    [ -e /run/.containerenv ] && put container podman
    [ -r /proc/1/cgroup ] || return
    while IFS= read -r line; do
        case $line in */docker* | */lxc* | */kubepods* | */libpod*)
            put init_cgroup "$line"
            break
            ;;
        esac
    done </proc/1/cgroup
}

network() {
    [ -d /sys/class/net ] && put radios known
    for device in /sys/class/net/*; do
        { [ -e "$device/wireless" ] || [ -e "$device/phy80211" ]; } && put radio "${device##*/}"
    done
    has ip || return
    put address "$(ip addr show 2>/dev/null)"
    put network "$(ip route show 2>/dev/null)"
    # A name means what it means here. No packet is sent; 198.51.100.1 is nobody's (RFC 5737): the default route.
    if [ -n "$manager_name" ]; then
        manager=$(getent ahostsv4 "$manager_name" 2>/dev/null)
        manager=${manager%%[!0-9.]*}
        [ -n "$manager" ] || put note "the name $manager_name is not known here: the route is the default one"
    fi
    put route "$(ip route get "${manager:-198.51.100.1}" 2>/dev/null)"
}

health() {
    for zone in /sys/class/thermal/thermal_zone*; do
        first "$zone/type"
        case $line in x86_pkg_temp | *cpu* | *soc* | *package*) record temperature "$zone/temp" ;; esac
    done
    for chip in /sys/class/hwmon/hwmon*; do
        first "$chip/name"
        case $line in coretemp | k10temp) record temperature "$chip/temp1_input" ;; esac
    done
    has vcgencmd && put throttled "$(vcgencmd get_throttled 2>/dev/null)"
    for file in /sys/devices/platform/soc*/soc*:firmware/get_throttled; do record throttled_hex "$file"; done
}

vxlan() {
    [ -d /sys/module/vxlan ] && put vxlan loaded && return
    [ -n "$release" ] || return
    modules=/lib/modules/$release
    if [ ! -e "$modules/modules.dep" ]; then
        put vxlan no-modules
    elif grep -q '/vxlan\.ko' "$modules/modules.dep" "$modules/modules.builtin" 2>/dev/null; then
        put vxlan loadable
    else
        put vxlan missing
    fi
}

# ask [sudo -n]: adds to $said what the engine answers to /version and /info, or what went wrong instead.
ask() {
    # Asking the API costs a small part of what the docker command does.
    has curl &&
        said=$("$@" curl -q -sS -m 10 --noproxy '*' --unix-socket "$socket" http://d/version http://d/info 2>&1)
    case $said in *'"ApiVersion"'*) return ;; esac
    has docker || return
    limit=
    has timeout && limit='timeout 10'
    said=$said$newline$($limit "$@" docker -H "unix://$socket" version --format '{{json .Server}}' 2>&1)
    case $said in *'"ApiVersion"'*)
        said=$said$newline$($limit "$@" docker -H "unix://$socket" info --format '{{json .}}' 2>&1)
        ;;
    esac
}

find_socket() {
    socket=/var/run/docker.sock
    case $DOCKER_HOST in unix://*) socket=${DOCKER_HOST#unix://} ;; esac
    [ -S "$socket" ] && return
    rootless=${XDG_RUNTIME_DIR:-/run/user/$(id -u 2>/dev/null)}/docker.sock
    [ -S "$rootless" ] && socket=$rootless
}

# ask_engine: sets $access, and $said to the engine's answers or to what went wrong.
ask_engine() {
    access=direct
    said=
    find_socket
    if [ ! -S "$socket" ]; then
        access=absent
        if has dockerd || has docker.dockerd; then
            access=down
            said="there is no socket $socket"
        elif has docker; then
            said='there is a docker command, but no dockerd'
        fi
    elif [ -w "$socket" ]; then
        ask
        case $said in
        *'"ApiVersion"'*) ;;
        '') said='neither curl nor a docker command is there to ask it' ;;
        *) access=down ;;
        esac
    elif has sudo; then
        ask sudo -n
        case $said in
        *'"ApiVersion"'*) access=sudo ;;
        *'curl: ('* | *'Cannot connect to the Docker daemon'*) access=down ;;
        *password* | *authentication*) access=sudo-password ;;
        *) access=denied ;;
        esac
    else
        access=denied
        said="no right to write to $socket"
    fi
}

engine() {
    ask_engine
    put access "$access"
    put engine "$said"
    # Patterns such as ${said#*…} take 0.3 s on 12 kB in every shell; splitting at the quotes takes 10 ms.
    root=
    state=
    before=
    earlier=
    IFS='"'
    set -f
    for word in $said; do
        case $earlier in
        DockerRootDir) root=$word ;;
        LocalNodeState) state=$word ;;
        esac
        earlier=$before
        before=$word
    done
    set +f
    unset IFS
    case $state in '' | inactive) return ;; esac
    file=$root/swarm/certificates/swarm-node.crt
    if [ -r "$file" ]; then
        put certificate "$(cat "$file" 2>/dev/null)"
    elif has sudo; then
        put certificate "$(sudo -n cat "$file" 2>/dev/null)"
    fi
}

disk() {
    for folder in "$root" /var/lib/docker /var/lib /; do
        [ -d "$folder" ] || continue
        put disk_folder "$folder"
        put disk "$(df -Pk "$folder" 2>/dev/null)"
        return
    done
}

probe() {
    printf '\n%s\n' '--- swarmctl probe 1'
    put started "$(date +%s.%N 2>/dev/null)"
    identity
    userland
    processor
    memory
    form
    virtualization
    network
    health
    vxlan
    engine
    disk
    put ended "$(date +%s.%N 2>/dev/null)"
    printf '%s\n' '--- swarmctl probe end'
}

# At the end, so that a text that was cut does nothing; and no command may read the rest of the text as its input.
probe </dev/null
