# Tests what gets from this machine to others; `pairs.py` puts the values of run, me, seconds, patience, expected, listen,
# edges and the text of pairs_remote.py where they belong, and reads what this prints. POSIX sh; writes no file.
#
#   edges     a line each: INDEX ADDRESS TCP-PORTS UDP-PORTS yes|no (runs this, too), ports by commas, - for none
#   listen    TCP-PORTS UDP-PORTS of this machine
LC_ALL=C
export LC_ALL

# echoes ADDRESS BYTES [OPTION…]: whether an echo of so many bytes comes back. 28 of them are the IP and ICMP headers.
# Twice, since a radio link loses one now and then, unless it is said why.
echoes() {
    address=$1 payload=$(($2 - 28))
    shift 2
    for _ in 1 2; do
        said=$(ping -n -c 1 -W 1 "$@" -s "$payload" "$address" 2>&1) && return
        case $said in *'mtu'*) return 1 ;; esac
    done
    return 1
}

pause() { sleep 0.5 2>/dev/null || sleep 1; }

# The largest packet that arrives whole. The sizes are those of Ethernet, PPPoE, tunnels, VXLAN, WireGuard, IPv6's least.
path_mtu() {
    index=$1 address=$2 mtu=
    if ! echoes "$address" 100; then
        mtu='no echo'
    elif ! echoes "$address" 100 -M do; then
        mtu='no -M'
    fi
    set -- 1500 1492 1480 1460 1450 1440 1420 1400 1380 1350 1300 1280 1200 1000 576
    # By halving, since each size that gets lost costs two seconds; the usual one first.
    low=1 high=$# middle=1 largest=100
    while [ -z "$mtu" ] && [ "$low" -le "$high" ]; do
        eval "size=\${$middle}"
        if echoes "$address" "$size" -M do; then
            largest=$size high=$((middle - 1))
        else
            low=$((middle + 1))
        fi
        middle=$(((low + high) / 2))
    done
    printf 'mtu\t%s\t-\t%s\n' "$index" "${mtu:-$largest}"
}

# Without python3: connections by bash or nc; nobody then sees what arrives here by UDP, or listens where
# nobody did.
connect() {
    # The other machine may be slower to start, and listen only then.
    for _ in 1 2 3 4 5; do
        connect_once "$2" "$3"
        [ "$word" = refused ] || break
        pause
    done
    printf 'tcp\t%s\t%s\t%s\n' "$1" "$3" "$word"
}

connect_once() {
    if command -v bash >/dev/null && command -v timeout >/dev/null; then
        said=$(timeout 4 bash -c 'exec 3<>"/dev/tcp/$0/$1"' "$1" "$2" 2>&1)
        case $?,$said in
        0,*) word=open ;;
        124,*) word=silent ;;
        *refused*) word=refused ;;
        *route* | *unreachable*) word=unreachable ;;
        *) word="failed ${said##*: }" ;;
        esac
    elif command -v nc >/dev/null; then
        began=$(date +%s)
        if nc -z -w 4 "$1" "$2" >/dev/null 2>&1 </dev/null; then
            word=open
        elif [ $(($(date +%s) - began)) -ge 3 ]; then
            word=silent
        else
            word=refused
        fi
    else
        word='no tool'
    fi
}

send() {
    word=sent
    for last in more more more more more done done; do
        datagram="swarmctl-doctor $run $me $1 $3 $last"
        if command -v bash >/dev/null; then
            said=$(bash -c 'printf %s "$2" >"/dev/udp/$0/$1"' "$2" "$3" "$datagram" 2>&1) || word="failed ${said##*: }"
        elif command -v nc >/dev/null; then
            printf %s "$datagram" | nc -u -w 1 "$2" "$3" >/dev/null 2>&1
        else
            word='no tool'
            break
        fi
        pause
    done
    printf 'udp\t%s\t%s\t%s\n' "$1" "$3" "$word"
}

with_tools_at_hand() {
    IFS=,
    for port in ${listen#* }; do printf 'see\t-\t%s\tno python3\n' "$port"; done
    for port in ${listen% *}; do
        # A listening socket is in state 0A.
        cat /proc/net/tcp /proc/net/tcp6 2>/dev/null | grep -q ":$(printf %04X "$port") [0-9A-F]*:0000 0A " ||
            printf 'deaf\t-\t%s\t-\n' "$port"
    done
    printf '%s\n' "$edges" | {
        while IFS=' ' read -r index address tcp udp _; do
            IFS=,
            for port in $tcp; do connect "$index" "$address" "$port" & done
            for port in $udp; do [ "$port" = - ] || send "$index" "$address" "$port" & done
        done
        wait
    }
}

printf 'swarmctl-pairs\tbegin\t1\n'
if command -v ping >/dev/null; then
    printf '%s\n' "$edges" | {
        while IFS=' ' read -r index address _ udp _; do [ "$udp" = - ] || path_mtu "$index" "$address" & done
        wait
    } &
fi
root=
[ "$(id -u)" = 0 ] || { sudo -n true </dev/null 2>/dev/null && root='sudo -n'; }
if python3 -c 'import sys; sys.exit(sys.version_info < (3, 7))' </dev/null 2>/dev/null; then
    $root python3 - "$run" "$me" "$seconds" "$patience" "$expected" "$listen" "$edges" <<'END-OF-PYTHON'
@@PYTHON@@
END-OF-PYTHON
else
    with_tools_at_hand
fi
wait
printf 'swarmctl-pairs\tend\n'
