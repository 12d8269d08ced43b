"""What must hold between two hosts, run on the first of them; the second serves (agent.py).

usage: scenarios.py BINARIES [--full] [--only NAME,...]
"""
import argparse
import json
import os
import subprocess
import time
import traceback

import hosts
from hosts import (HERE, OUT, THERE, Failed, Netem, Peer, check, cut, expect_error, expect_no_spin, expect_ok,
                   expect_sent, mend, pair)
from strangers import aggregator_strangers, strangers  # noqa: F401, found by their names


# --- scenarios; each takes the transport, and returns what is worth a line ---


def devices(_):
    text = subprocess.run("ibv_devinfo -v | grep -E 'hca_id|state|active_mtu|GID'", shell=True, capture_output=True, text=True).stdout
    check("PORT_ACTIVE" in text, f"soft-RoCE did not come up:\n{text}")
    return " ".join(text.split())


def conformance(transport):
    return run_conformance(transport, THERE)


def conformance_ipv6(transport):
    return run_conformance(transport, "[fd07::2]")


server = None


def run_conformance(transport, address):
    global server
    if server is None:
        server = Peer([f"{hosts.BIN}/rdma_vm_peer", "serve", f"{THERE}:9001"], True)
        server.await_text("listening")
    log = f"{OUT}/conformance-{transport}{'6' if ':' in address else ''}.log"
    with open(log, "wb") as file:
        code = subprocess.run(
            [f"{hosts.BIN}/rdma_vm_conformance", f"{THERE}:9001", address, f"--gtest_filter=*/{transport}"],
            stdout=file, stderr=subprocess.STDOUT, timeout=600).returncode
    with open(log, errors="replace") as file:
        lines = file.read().splitlines()
    passed = [line for line in lines if line.startswith("[  PASSED  ]")]
    check(code == 0, "\n".join(line for line in lines if "FAILED" in line or "Failure" in line))
    return passed[0][13:].strip()


def plain(transport):
    return f"{expect_ok(*pair(transport, 8)[:2], 'undisturbed'):.1f} s for 8 MiB"


def long_stream(transport):
    seconds = expect_ok(*pair(transport, 3072)[:2], "3 GiB", within=400)
    return f"{seconds:.0f} s for 3 GiB"


def disturbed(transport, rule, chunks=8):
    """A stream through a worse network: both sides' reports, and a line."""
    with Netem(rule):
        sent, got = expect_sent(*pair(transport, chunks)[:2], rule)
    spent = expect_no_spin(transport, chunks, sent, got, rule)
    return sent, got, f"{got['seconds']:.1f} s for {chunks} MiB, {spent}"


def loss(transport):
    return disturbed(transport, "loss 0.5%")[2]


def loss_3(transport):
    # Segments pass the loss up to 64 KiB at a time: of 32 MiB some fifteen are lost.
    sent, _, line = disturbed(transport, "loss 3%", 32 if transport == "tcp" else 8)
    if transport != "tcp":
        return line
    check(sent["retransmits"] > 0, f"segments were lost, and none is counted as sent again: {sent}")
    before = hosts.undisturbed[transport, 32][0]["retransmits"]
    return f"{line}; {sent['retransmits']} segments sent again ({before} undisturbed)"


def delay(transport):
    return disturbed(transport, "delay 50ms")[2]


def cut_for_2s(transport):
    receiver, sender, _ = pair(transport, 48)
    receiver.await_text("first chunk")
    cut(2)
    spinning = cpu_share(sender.process.pid, after=0.5, over=1.5)
    mend()
    sent, got = expect_sent(receiver, sender, "cut for 2 s")
    check(spinning < 0.1, f"the sender takes {spinning:.0%} of a CPU while nothing can be sent")
    return f"{got['seconds']:.1f} s for 48 MiB, {expect_no_spin(transport, 48, sent, got, 'cut for 2 s')}"


def cpu_share(pid, after, over):
    """Of a process that runs on, from `after` seconds from now, for `over` seconds."""
    def seconds():
        with open(f"/proc/{pid}/stat") as file:
            fields = file.read().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    time.sleep(after)
    before = seconds()
    time.sleep(over)
    return (seconds() - before) / over


def cut_for_good(transport):
    receiver, sender, _ = pair(transport, 100000)
    receiver.await_text("first chunk")
    cut(9)
    start = time.monotonic()  # what it takes to cut is no part of what it takes to notice
    try:
        spinning = cpu_share(sender.process.pid, after=1.5, over=2)
        code = sender.process.wait(30)
        noticed = time.monotonic() - start
        time.sleep(max(0.0, 9.5 - noticed))  # so long the receiver may take by itself
    except subprocess.TimeoutExpired:
        raise Failed(f"the sender hangs on a cut network:\n{sender.text()}")
    finally:
        mend()
    check(code == 3 and noticed < 8, f"the sender says {sender.text()} after {noticed:.1f} s")
    check(spinning < 0.1, f"the sender takes {spinning:.0%} of a CPU while nothing can be sent")
    said = sender.report()
    expect_error(said, 600, "the sender on a cut network")
    if transport == "roce-finite":  # the device gives up before the heartbeat does, and the hint says what that means
        check("status 12" in said["message"] and "queue pair" in said["message"], f"{said}")
    got = receiver.report(5)
    expect_error(got, 600, "the receiver on a cut network")
    quiet = got["quiet_seconds"]  # by its own clock: nobody could ask it meanwhile
    check(quiet < 8, f"the receiver waited {quiet:.1f} s for the next chunk: {got}")
    return f"noticed after {noticed:.1f} s here and {quiet:.1f} s there, {spinning:.1%} of a CPU meanwhile: {sender.report()['message'][:160]}"


def stopped_for_3s(transport):
    receiver, sender, _ = pair(transport, 32)
    receiver.await_text("first chunk")
    receiver.signal("SIGSTOP")
    spinning = cpu_share(sender.process.pid, after=1, over=2)  # by then it has no credit left
    receiver.signal("SIGCONT")
    check(spinning < 0.1, f"the sender takes {spinning:.0%} of a CPU while its peer is stopped")
    return f"{expect_ok(receiver, sender, 'stopped for 3 s'):.1f} s for 32 MiB, {spinning:.1%} of a CPU meanwhile"


def killed_mid_stream(transport):
    receiver, sender, _ = pair(transport, 100000)
    receiver.await_text("first chunk")
    receiver.signal("SIGKILL")
    start = time.monotonic()
    report = sender.report(30)
    noticed = time.monotonic() - start
    expect_error(report, 600, "the receiver was killed")
    check(noticed < 6, f"noticed after {noticed:.1f} s")
    return f"noticed after {noticed:.1f} s: {report['message'][:120]}"


def killed_before_first(transport):
    receiver = Peer([f"{hosts.BIN}/rdma_vm_peer", "receive", transport, f"{HERE}:7094", "1"], False)
    receiver.await_text("listening")
    silent = Peer([f"{hosts.BIN}/rdma_vm_peer", "idle", transport, f"{HERE}:7094", "60"], True)
    silent.await_text("linked")
    receiver.await_text("linked")
    silent.signal("SIGKILL")
    start = time.monotonic()
    report = receiver.report(30)
    noticed = time.monotonic() - start
    expect_error(report, 600, "the sender was killed")
    check("first chunk" not in receiver.text(), f"the sender was to send nothing:\n{receiver.text()}")
    check(noticed < 6, f"noticed after {noticed:.1f} s")
    return f"noticed after {noticed:.1f} s: {report['message'][:120]}"


def connect_times_out(transport):
    """Over a cut network, and to a process that is stopped: a named error within connect_timeout, 10 s."""
    receiver = Peer([f"{hosts.BIN}/rdma_vm_peer", "receive", transport, f"{THERE}:7093", "1"], True)
    receiver.await_text("listening")
    took = {}

    def expect_time_out(sender, what):
        said = sender.report(40)
        took[what] = said["open_seconds"]
        check(said["code"] in ("DEADLINE_EXCEEDED", "UNAVAILABLE") and f"{THERE}:7093" in said["message"], f"{what}: {said}")
        check("linked" not in said and said["open_seconds"] < 12, f"{what}: {said}")
        hosts.expect_given_back(said, what)

    def connect():
        return Peer([f"{hosts.BIN}/rdma_vm_peer", "send", transport, f"{THERE}:7093", "1"], False)

    cut(15)
    try:
        start = time.monotonic()
        sender = connect()
        sender.process.wait(40)
        time.sleep(max(0.0, 15.5 - (time.monotonic() - start)))  # so long the second host cannot be asked
    except subprocess.TimeoutExpired:
        raise Failed(f"the sender hangs on a cut network:\n{sender.text()}")
    finally:
        mend()
    expect_time_out(sender, "a cut network")
    receiver.signal("SIGSTOP")
    try:
        expect_time_out(connect(), "a stopped process")
    finally:
        receiver.signal("SIGKILL")
    return ", ".join(f"{what} after {seconds:.1f} s" for what, seconds in took.items())


def restarted_at_the_same_address(transport):
    receiver, sender, address = pair(transport, 100000)
    receiver.await_text("first chunk")
    receiver.signal("SIGKILL")
    expect_error(sender.report(30), 600, "the receiver was killed")
    again = Peer([f"{hosts.BIN}/rdma_vm_peer", "receive", transport, address, "4"], True)
    again.await_text("listening")
    sender = Peer([f"{hosts.BIN}/rdma_vm_peer", "send", transport, address, "4"], False)
    return f"{expect_ok(again, sender, 'after the restart'):.1f} s for 4 MiB"


def idle(transport):
    receiver = Peer([f"{hosts.BIN}/rdma_vm_peer", "receive", transport, f"{THERE}:7097", "1"], True)
    receiver.await_text("listening")
    report = Peer([f"{hosts.BIN}/rdma_vm_peer", "idle", transport, f"{THERE}:7097", "5"], False).report()
    receiver.wait(60)
    check(report["code"] == "OK", f"{report}")
    share = report["cpu_seconds"] / report["seconds"]
    check(share < 0.01, f"an idle link takes {share:.2%} of a CPU")
    return f"{share:.2%} of an emulated CPU over 5 s"


def reconnects(transport, links=10_000):
    acceptor = Peer([f"{hosts.BIN}/rdma_vm_peer", "accept", transport, f"{THERE}:7096", str(links)], True)
    acceptor.await_text("listening")
    connecter = Peer([f"{hosts.BIN}/rdma_vm_peer", "reconnect", transport, f"{THERE}:7096", str(links)], False)
    lines = []
    for side, report in (("connecting", connecter.report(1500)), ("accepting", acceptor.report(60))):
        check(report["code"] == "OK", f"{side}: {report}")
        before, linked, after = report["before"], report["linked"], report["after"]
        # Before one is taken the next may be in the making: what is left would still be one's a link.
        check(after["fds"] <= before["fds"] + 2, f"{side}: descriptors grow: {report}")
        check(after["resident_kb"] <= before["resident_kb"] + 2048, f"{side}: memory grows: {report}")
        check(0 < linked["queue_pairs"] <= 6, f"{side}: queue pairs of one link at work, and of the one before it: {report}")
        check(after["queue_pairs"] == 0, f"{side}: queue pairs are left: {report}")
        lines.append(f"{side}: descriptors {before['fds']} to {after['fds']}, resident {before['resident_kb']} to "
                     f"{after['resident_kb']} KiB, queue pairs {before['queue_pairs']}, {linked['queue_pairs']}, 0")
    return f"{links} links; {'; '.join(lines)}"


def memlock(_):
    limited = ["setpriv", "--inh-caps=-ipc_lock", "--bounding-set=-ipc_lock", "prlimit", "--memlock=65536:65536"]
    roce = Peer(limited + [f"{hosts.BIN}/rdma_vm_peer", "receive", "roce", f"{HERE}:7098", "1"], False)
    report = roce.report(60)
    check(report["code"] == "FAILED_PRECONDITION" and "has to lock 52 MiB (54525952 bytes)" in report["message"]
          and "may lock 64 KiB" in report["message"] and "LimitMEMLOCK=infinity" in report["message"], f"roce says {report}")
    tcp = Peer(limited + [f"{hosts.BIN}/rdma_vm_peer", "receive", "tcp", f"{HERE}:7098", "1"], False)
    tcp.await_text("listening")
    text = tcp.text()
    tcp.signal("SIGKILL")
    check("RDMA" not in text and "RoCE" not in text, f"tcp speaks of RDMA: {text}")
    return report["message"][:150]


def federated(_):
    """A whole run, its root here and a rack with clients there: the transport does not change a bit."""
    hashes = {}
    used = {"tcp": "tcp", "roce": "roce", "auto": "roce"}
    for transport in used:
        directory = f"/tmp/run-{transport}"
        os.makedirs(directory)
        link = f"[transport]\nkind = \"{transport}\"\nlisten = \"%s:0\"\n[transport.roce]\narena_bytes = \"64MiB\"\n"
        with open(f"{directory}/global.toml", "w") as file:
            file.write(f"[node]\nname = \"global\"\nlisten = \"{HERE}:7070\"\n" + link % HERE +
                       "[run]\nname = \"vm\"\nrounds = 3\nmodel = \"logreg\"\nstartup_limit_s = 120\n"
                       "[cohort]\nminimum = 2\n[straggler]\ndeadline_s = 120\nrejoin_grace_s = 20\n"
                       f"[checkpoint]\ndirectory = \"{directory}/checkpoints\"\n")
        hosts.agent("write", path=f"/tmp/rack-{transport}.toml",
              text=f"[node]\nname = \"rack\"\nlisten = \"{THERE}:7080\"\nparent = \"{HERE}:7070\"\n" + link % THERE)
        root = Peer([f"{hosts.BIN}/tributary", "serve", f"{directory}/global.toml"], False)
        others = [Peer([f"{hosts.BIN}/tributary", "serve", f"/tmp/rack-{transport}.toml"], True)]
        others += [Peer([f"{hosts.BIN}/e2e_client", f"c{i}", "0", f"{THERE}:7080"], True) for i in range(2)]
        code = root.wait(300)
        check(code == 0, f"the root over {transport} ended with {code}:\n{root.text()}\n{others[0].text()}")
        for other in others:
            other.wait(60)
        with open(f"{directory}/checkpoints/vm/rounds.jsonl") as file:
            rounds = [json.loads(line) for line in file]
        check(len(rounds) == 3 and all(one["transport"] == used[transport] for one in rounds), f"{rounds}")
        hashes[transport] = [one["model_sha256"] for one in rounds]
    check(hashes["tcp"] == hashes["roce"] == hashes["auto"], f"the models differ: {hashes}")
    return f"3 rounds, model {hashes['roce'][-1][:16]} over tcp, roce, and auto, which took roce"


def rack_killed_at_40_percent(_):
    """A rack over RoCE is killed when 4 of the 10 chunks of its partial sum are in, and is back within the round."""
    rounds = {}
    for name in ("undisturbed", "killed"):
        directory = f"/tmp/fold-{name}"
        os.makedirs(directory)
        link = "[transport]\nkind = \"roce\"\nlisten = \"%s:0\"\n[transport.roce]\narena_bytes = \"64MiB\"\n"
        with open(f"{directory}/global.toml", "w") as file:
            file.write(f"[node]\nname = \"global\"\nlisten = \"{HERE}:7072\"\n" + link % HERE +
                       "[log]\nlevel = \"debug\"\n"
                       "[run]\nname = \"vm\"\nrounds = 1\nmodel = \"synthetic:1300000\"\nevaluate_every = 0\n"
                       "startup_limit_s = 120\n[cohort]\nminimum = 1\n[straggler]\ndeadline = \"fixed\"\n"
                       f"deadline_s = 200\nrejoin_grace_s = 100\n[checkpoint]\ndirectory = \"{directory}/checkpoints\"\n")
        honest = f"[node]\nname = \"rack\"\nlisten = \"{THERE}:7082\"\nparent = \"{HERE}:7072\"\n" + link % THERE
        hosts.agent("write", path="/tmp/rack.toml", text=honest)
        hosts.agent("write", path="/tmp/stalls.toml", text=honest + "[transport.faults]\nstall_after = 5\n")
        root = Peer([f"{hosts.BIN}/tributary", "serve", f"{directory}/global.toml"], False)
        rack = Peer([f"{hosts.BIN}/tributary", "serve", "/tmp/rack.toml" if name == "undisturbed" else "/tmp/stalls.toml"], True)
        others = [Peer([f"{hosts.BIN}/e2e_client", "a", "0", f"{THERE}:7082"], True)]
        if name == "killed":
            root.await_text("chunk 4 of 10 is in", 120)
            rack.signal("SIGKILL")
            rack.wait(60)
            rack = Peer([f"{hosts.BIN}/tributary", "serve", "/tmp/rack.toml"], True)
        code = root.wait(200)
        check(code == 0, f"the root ended with {code}:\n{root.text()}\n{rack.text()}")
        for other in others + [rack]:
            other.wait(60)
        with open(f"{directory}/checkpoints/vm/rounds.jsonl") as file:
            rounds[name] = json.loads(file.readline())
    resumed = "goes on after chunk 4 of 10" in root.text()
    same = rounds["killed"]["model_sha256"] == rounds["undisturbed"]["model_sha256"]
    taken = [rounds[name]["bytes"]["from_aggregators"] for name in ("undisturbed", "killed")]
    check(same and resumed and taken[0] == taken[1], f"resumed {resumed}, {rounds}")
    return f"gone on with after chunk 4 of 10; {taken[1]} bytes taken in, as undisturbed; the same model"


def route(transport):
    """The kernel picks the device and the GID by the route; where it cannot be asked, the address does, and both are said."""
    receiver, sender, _ = pair(transport, 2)
    expect_ok(receiver, sender, "by route")
    for end in (receiver, sender):
        check("by the route to the peer (librdmacm)" in end.text(), f"{end.name} does not say how it chose:\n{end.text()}")

    def from_there(address, chunks="2"):
        """A receiver here at `address`, and a sender on the second host."""
        taker = Peer([f"{hosts.BIN}/rdma_vm_peer", "receive", transport, f"{address}:7095", chunks], False)
        taker.await_text("listening")
        return taker, Peer([f"{hosts.BIN}/rdma_vm_peer", "send", transport, f"{address}:7095", chunks], True)

    # An address of the host and of no network device: no GID has it, and the route still names one.
    service = "10.9.0.1"
    subprocess.run(f"ip addr add {service}/32 dev lo", shell=True, check=True)
    done = hosts.agent("shell", command=f"ip route add {service} via {HERE}")
    check(done["code"] == 0, done["text"])
    node, hidden = "/dev/infiniband/rdma_cm", "/dev/infiniband/rdma_cm.hidden"
    try:
        receiver, sender = from_there(service)
        expect_ok(receiver, sender, "at a service address")
        line = next(one for one in receiver.text().splitlines() if "link over RoCE" in one)
        check(f"GID {HERE} (index" in line and "by the route" in line, f"the receiver says {line}")
        with open("/tmp/service.toml", "w") as file:
            file.write(f"[node]\nname = \"rack\"\nlisten = \"{HERE}:7081\"\nparent = \"{THERE}:7070\"\n[transport]\n"
                       f"kind = \"roce\"\nlisten = \"{service}:0\"\n[transport.roce]\narena_bytes = \"64MiB\"\n")

        def told():
            done = subprocess.run([f"{hosts.BIN}/tributary", "doctor", "/tmp/service.toml", "--json"],
                                  capture_output=True, text=True, timeout=120)
            return next(one for one in json.loads(done.stdout)["checks"] if one["name"] == "rdma.address")

        check(told()["verdict"] == "ok", f"the doctor at a service address: {told()}")
        os.rename(node, hidden)  # as in a container without it
        check(told()["verdict"] == "fail", f"the doctor at a service address, without rdma_cm: {told()}")
        receiver, sender = from_there(HERE)
        expect_ok(receiver, sender, "by address")
        blind = next(one for one in receiver.text().splitlines() if "link over RoCE" in one)
        check("by the control socket's address, since not by route" in blind, f"without rdma_cm the receiver says {blind}")
        receiver, sender = from_there(service)
        said = sender.report(60)
        check(said["code"] == "NOT_FOUND" and "no RDMA device has the address" in said["message"], f"{said}")
        receiver.signal("SIGKILL")
    finally:
        if os.path.exists(hidden):
            os.rename(hidden, node)
        subprocess.run(f"ip addr del {service}/32 dev lo", shell=True, check=False)
        hosts.agent("shell", command=f"ip route del {service}")
    return line[line.index("link over RoCE"):][:200]


def doctor(_):
    """The doctor on a host with a device: which one, which GID, and whether RoCE's port of the other host answers."""
    with open("/tmp/doctor.toml", "w") as file:
        file.write(f"[node]\nname = \"rack\"\nlisten = \"{HERE}:7080\"\nparent = \"{THERE}:7070\"\n[transport]\n"
                   f"kind = \"roce\"\nlisten = \"{HERE}:0\"\n[transport.roce]\narena_bytes = \"64MiB\"\n")

    def ask(peer):
        done = subprocess.run([f"{hosts.BIN}/tributary", "doctor", "/tmp/doctor.toml", "--peer", peer, "--json"],
                              capture_output=True, text=True, timeout=120)
        findings = {one["name"]: one for one in json.loads(done.stdout)["checks"]}
        return done.returncode, findings

    code, findings = ask(THERE)
    failed = [one for one in findings.values() if one["verdict"] == "fail"]
    check(code == 0 and not failed, f"exit code {code}: {failed}")
    expected = {"rdma.devices": "rxe0", "rdma.port rxe0/1": "ACTIVE", "rdma.mtu rxe0/1": "active path MTU 4096",
                "rdma.gids rxe0/1": f"best is 1 {HERE} on eth0 (RoCE v2, IPv4 address)",
                "rdma.address": f"links to {HERE} use GID 1 of rxe0/1", "peer.route": f"from {HERE} on eth0",
                "rdma.udp_4791": f"{THERE} answered through its RDMA connection manager"}
    for name, words in expected.items():
        check(words in findings[name]["seen"], f"{name} says {findings[name]}")
    check(findings["rdma.self_test rxe0/1"]["verdict"] == "ok", f"{findings['rdma.self_test rxe0/1']}")
    code, nobody = ask("10.7.0.99")
    check(code == 1 and nobody["rdma.udp_4791"]["verdict"] == "fail", f"a host that is not there: {nobody['rdma.udp_4791']}")
    return f"{findings['rdma.gids rxe0/1']['seen'][:60]}; {findings['rdma.udp_4791']['seen']}"


def nothing_left(_):
    """After all that was cut, stopped and killed: no queue pair on either host, and no receiver was ever not ready."""
    count = "rdma resource show qp link rxe0 | grep -c 'type RC'"
    here = subprocess.run(count, shell=True, capture_output=True, text=True).stdout.strip()
    there = hosts.agent("shell", command=count)["text"].strip()
    check(here == there == "0", f"queue pairs that are left: {here} here, {there} there")
    counters = "cat /sys/class/infiniband/rxe0/ports/1/hw_counters/rcvd_rnr_err"
    rnr = [subprocess.run(counters, shell=True, capture_output=True, text=True).stdout.strip(),
           hosts.agent("shell", command=counters)["text"].strip()]
    check(rnr == ["0", "0"], f"receiver not ready: {rnr}")
    return "no queue pair, no receiver-not-ready on either host"


def speed(_):
    """Our overhead over the device's own tool, in emulation: no claim about any network. The better of two turns, since
    a machine that emulates two others is never quiet."""
    turns = []
    for port in (18515, 18516):
        write_bw = ["ib_write_bw", "-d", "rxe0", "-x", "1", "-s", "1048576", "-n", "64", "-p", str(port)]
        hosts.agent("start", name=f"bw{port}", argv=write_bw)
        hosts.await_listener(port)
        tool = subprocess.run(write_bw + [THERE], capture_output=True, text=True, timeout=200).stdout
        row = [line.split() for line in tool.splitlines() if line.strip().startswith("1048576")]
        check(row, f"ib_write_bw says {tool}")
        hosts.agent("wait", name=f"bw{port}", timeout=60)
        turns.append((64 / expect_ok(*pair("roce", 64)[:2], "the stream"), float(row[0][3])))
    ours, ceiling = max(turns, key=lambda turn: turn[0] / turn[1])
    mib = 1048576 / 1e9
    figure = {"name": "transport.roce.stream", "value": ours * mib, "unit": "GB/s", "ceiling": ceiling * mib,
              "ratio": ours / ceiling, "note": "emulation, the better of two turns; ceiling: ib_write_bw"}
    with open(f"{OUT}/speed.json", "w") as file:
        json.dump({"figures": [figure]}, file)
    said = ", ".join(f"{a:.1f} of {b:.1f} MiB/s ({a / b:.2f})" for a, b in turns)
    check(ours / ceiling >= 0.8, f"less than 0.8 of ib_write_bw in both turns: {said}")
    return f"emulated: roce stream against ib_write_bw: {said}"


def bench(_):
    """`tributary bench transport` over RoCE of one host, with what perftest gets in the same run as its ceiling."""
    file = "/tmp/bench.json"
    done = subprocess.run([f"{hosts.BIN}/tributary", "bench", "transport", "--transport", "roce", "--listen", f"{HERE}:0",
                           "--sizes", "4K,1M", "--bytes", "16M", "--repetitions", "1", "--json", file],
                          capture_output=True, text=True, timeout=300)
    check(done.returncode == 0, done.stdout + done.stderr)
    with open(file) as text:
        figures = {one["name"]: one for one in json.load(text)["figures"]}
    for name in ("stream", "rtt_4K_us", "cpu_s_per_gb"):
        check(figures[f"transport.roce.{name}"].get("ceiling"), f"no ceiling of {name}:\n{done.stdout}")
    check(figures["transport.roce.open_ms"]["value"] > 0, f"{figures}")
    stream, ping = figures["transport.roce.stream"], figures["transport.roce.rtt_4K_us"]
    return (f"emulated, both ends on one host: stream {stream['value'] * 1e3:.0f} MB/s beside ib_write_bw {stream['ceiling'] * 1e3:.0f}, "
            f"round trip {ping['value']:.0f} us beside ib_send_lat {ping['ceiling']:.0f}")


def socket_ways(__):
    """What MSG_ZEROCOPY and io_uring cost off loopback, in emulation: CPU, no claim about any network."""
    results = []
    for _ in range(2):
        for way in ("plain", "zerocopy", "uring", "uring_zerocopy"):
            at = [THERE, str(9200 + len(results))]
            receiver = Peer([f"{hosts.BIN}/socket_ways", "receive", *at, way.split("_")[0], "64"], True)
            receiver.await_text("listening")
            sent = Peer([f"{hosts.BIN}/socket_ways", "send", *at, way, "64"], False).report(120)
            got = receiver.report(120)
            results.append(f"{way} {sent['gb_per_s'] * 1e3:.0f} MB/s, send {sent['cpu_s_per_gb']:.2f} + receive "
                           f"{got['cpu_s_per_gb']:.2f} s/GB, {sent['calls_copied']} calls copied")
    return "emulated: " + "; ".join(results)


SHORT = [("devices", "roce"), ("conformance", "roce"), ("federated", "roce"), ("loss", "roce"), ("cut_for_2s", "roce"),
         ("killed_mid_stream", "roce"), ("rack_killed_at_40_percent", "roce"), ("stopped_for_3s", "roce"), ("loss_3", "tcp"),
         ("memlock", "roce"), ("route", "roce"), ("doctor", "roce"), ("nothing_left", "roce")]
FULL = SHORT[:-1] + [("conformance_ipv6", "roce"), ("conformance", "tcp"), ("plain", "roce"), ("loss_3", "roce"),
                ("delay", "roce"), ("cut_for_good", "roce"), ("cut_for_good", "roce-finite"), ("killed_before_first", "roce"),
                ("connect_times_out", "roce"),
                ("restarted_at_the_same_address", "roce"), ("strangers", "roce"), ("aggregator_strangers", "auto"), ("idle", "roce"),
                ("reconnects", "roce"), ("speed", "roce"), ("bench", "roce"), ("long_stream", "roce")]
FULL += [("nothing_left", "roce"), ("idle", "tcp")]
FULL += [(name, "tcp") for name in ("plain", "loss", "delay", "cut_for_2s", "cut_for_good", "connect_times_out", "stopped_for_3s",
                                    "killed_mid_stream", "killed_before_first", "restarted_at_the_same_address",
                                    "strangers")]

EXTRA = [("socket_ways", "tcp")]  # measurements, by --only alone


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("binaries")
    parser.add_argument("--full", action="store_true")
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    hosts.BIN = options.binaries
    report = open(f"{OUT}/report", "w")

    def say(line):
        print(line, flush=True)
        report.write(line + "\n")
        report.flush()

    chosen = FULL if options.full or options.only else SHORT
    if options.only:
        chosen = [one for one in FULL + EXTRA if one[0] in options.only.split(",") or f"{one[0]}/{one[1]}" in options.only.split(",")]
    failed = 0
    hosts.agent = hosts.Agent()
    for name, transport in chosen:
        start = time.monotonic()
        try:
            result = globals()[name](transport)
            say(f"held    {name}/{transport} ({time.monotonic() - start:.0f} s): {result}")
        except Exception as error:
            failed += 1
            detail = error if isinstance(error, Failed) else traceback.format_exc()
            say(f"FAILED  {name}/{transport} ({time.monotonic() - start:.0f} s): {detail}")
    say("rdma_vm: all held" if failed == 0 and chosen else f"rdma_vm: {failed} of {len(chosen)} failed")


if __name__ == "__main__":
    main()
