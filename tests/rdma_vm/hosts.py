"""The two emulated hosts as scenarios.py sees them: processes on either, and the network between."""
import json
import os
import signal
import socket
import subprocess
import time

HERE, THERE = "10.7.0.1", "10.7.0.2"
OUT = "/tmp/out"
BIN = ""  # where the binaries are; set before anything is started


class Failed(Exception):
    pass


def check(holds, what):
    if not holds:
        raise Failed(what)


class Agent:
    """The second host."""

    def __init__(self):
        limit = time.monotonic() + 60
        while True:
            try:
                self.socket = socket.create_connection((THERE, 9000), timeout=2)
                break
            except OSError:
                check(time.monotonic() < limit, "the second host does not answer")
                time.sleep(0.2)
        self.socket.settimeout(240)
        self.file = self.socket.makefile("rwb")

    def __call__(self, verb, **request):
        self.file.write(json.dumps({"verb": verb, **request}).encode() + b"\n")
        self.file.flush()
        answer = json.loads(self.file.readline())
        check("error" not in answer, f"{verb} on the second host: {answer.get('error')}")
        return answer


agent = None
count = 0


class Peer:
    """A process on either host whose output goes to a file."""

    def __init__(self, argv, there):
        global count
        count += 1
        self.name, self.there = f"p{count}", there
        if there:
            agent("start", name=self.name, argv=argv)
        else:
            self.process = subprocess.Popen(argv, stdout=open(f"/tmp/{self.name}.log", "wb"), stderr=subprocess.STDOUT)

    def text(self):
        if self.there:
            return agent("read", name=self.name)["text"]
        with open(f"/tmp/{self.name}.log", errors="replace") as file:
            return file.read()

    def await_text(self, text, seconds=60):
        limit = time.monotonic() + seconds
        while text not in self.text():
            check(time.monotonic() < limit, f"{self.name} does not say \"{text}\":\n{self.text()}")
            time.sleep(0.1)

    def signal(self, name):
        if self.there:
            agent("signal", name=self.name, signal=name)
        else:
            self.process.send_signal(getattr(signal, name))

    def wait(self, seconds=120):
        if self.there:
            code = agent("wait", name=self.name, timeout=seconds)["code"]
        else:
            try:
                code = self.process.wait(seconds)
            except subprocess.TimeoutExpired:
                code = None
        check(code is not None, f"{self.name} hangs:\n{self.text()}")
        return code

    def report(self, seconds=120):
        self.wait(seconds)
        self.expect_accounted()
        lines = [line for line in self.text().splitlines() if line.startswith("{")]
        check(lines, f"{self.name} gave no report:\n{self.text()}")
        return json.loads(lines[-1])

    def expect_accounted(self):
        """Its links' ends have had every request back that they gave a device: what they say of those that are missing."""
        kept = [line for line in self.text().splitlines() if "were not given back" in line]
        check(not kept, f"{self.name} tore a link down with requests left at the device: {kept}")


port = 7100


def pair(transport, chunks):
    """A receiver that listens on the second host and a sender that connects from here, linked."""
    global port
    port += 1
    address = f"{THERE}:{port}"
    receiver = Peer([f"{BIN}/rdma_vm_peer", "receive", transport, address, str(chunks)], True)
    receiver.await_text("listening")
    sender = Peer([f"{BIN}/rdma_vm_peer", "send", transport, address, str(chunks)], False)
    return receiver, sender, address


def shell_both(command):
    subprocess.run(command, shell=True, check=True)
    done = agent("shell", command=command)
    check(done["code"] == 0, f"{command}: {done['text']}")


class Netem:
    """The network between, made worse on both hosts."""

    def __init__(self, rule):
        self.rule = rule

    def __enter__(self):
        shell_both(f"tc qdisc replace dev eth0 root netem limit 10000 {self.rule}")

    def __exit__(self, *_):
        shell_both("tc qdisc del dev eth0 root")


def cut(seconds):
    """Both ways. The second host mends its side by itself, since nobody can tell it to."""
    agent("shell", command=f"(sleep 0.3; tc qdisc replace dev eth0 root netem loss 100%; sleep {seconds}; "
                           "tc qdisc del dev eth0 root) >/dev/null 2>&1 &")
    time.sleep(0.3)
    subprocess.run("tc qdisc replace dev eth0 root netem loss 100%", shell=True, check=True)


def mend():
    subprocess.run("tc qdisc del dev eth0 root", shell=True, check=True)


def await_listener(port, seconds=60):
    """Until a process on the second host listens at this TCP port: for one that does not say so itself."""
    def listens():
        sockets = [line.split() for line in agent("shell", command="cat /proc/net/tcp /proc/net/tcp6")["text"].splitlines()]
        return any(one[1].endswith(f":{port:04X}") and one[3] == "0A" for one in sockets if len(one) > 3)
    limit = time.monotonic() + seconds
    while not listens():
        check(time.monotonic() < limit, f"nobody listens at port {port} of the second host")
        time.sleep(0.1)


def listening_ports(pid):
    """TCP ports at which a process of this host listens: its sockets' inodes against the kernel's table."""
    inodes = set()
    for fd in os.listdir(f"/proc/{pid}/fd"):
        try:
            inodes.add(os.readlink(f"/proc/{pid}/fd/{fd}"))
        except FileNotFoundError:  # closed meanwhile
            pass
    ports = set()
    for table in ("tcp", "tcp6"):
        with open(f"/proc/{pid}/net/{table}") as file:
            for one in (line.split() for line in file):
                if len(one) > 9 and one[3] == "0A" and f"socket:[{one[9]}]" in inodes:
                    ports.add(int(one[1].rsplit(":", 1)[1], 16))
    return ports


def say(address, port, words):
    """As a stranger: says these words and no more; what is answered until the other side ends the connection."""
    heard = b""
    with socket.create_connection((address, port), timeout=30) as stranger:
        try:
            stranger.sendall(words)
            stranger.shutdown(socket.SHUT_WR)
            while more := stranger.recv(4096):
                heard += more
        except TimeoutError:
            raise Failed(f"port {port} of {address} holds on to a stranger that said {words[:20]}")
        except OSError:  # cut off in the middle of what it says: that is an end too
            pass
    return heard


def expect_given_back(report, what):
    """Its link is gone and its fabric is not: what the process holds is what it held before."""
    before, after = report["before"], report["after"]
    check(after["fds"] <= before["fds"] + report["kept_fds"], f"{what}: descriptors are left: {report}")
    check(before["queue_pairs"] == after["queue_pairs"] == 0, f"{what}: queue pairs are left: {report}")
    # Half of a link's memory is used in each direction, 8 MiB; threads and allocators keep some hundred KiB.
    check(after["kb"] <= before["kb"] + 4096, f"{what}: memory is left: {report}")


def expect_sent(receiver, sender, what, within=120):
    """Both sides' reports of a stream that went well."""
    sent, got = sender.report(within), receiver.report(within)
    check(sent["code"] == "OK", f"{what}: the sender says {sent}")
    check(got["code"] == "OK", f"{what}: the receiver says {got}")
    for side, report in (("sender", sent), ("receiver", got)):
        check((report["transport"] == "roce") == (report["queue_pairs"] > 0), f"{what}: queue pairs at work: {report}")
        expect_given_back(report, f"{what}, the {side}")
    return sent, got


def expect_ok(receiver, sender, what, within=120):
    return expect_sent(receiver, sender, what, within)[1]["seconds"]


undisturbed = {}


def expect_no_spin(transport, chunks, sent, got, what):
    """Who waits for a network that loses or delays sleeps: no more CPU than undisturbed, but for what is done again
    and a small share of the time that is waited."""
    if (transport, chunks) not in undisturbed:
        undisturbed[transport, chunks] = expect_sent(*pair(transport, chunks)[:2], "undisturbed")
    said = []
    for side, now, plain in zip(("sender", "receiver"), (sent, got), undisturbed[transport, chunks]):
        waited = max(0.0, now["seconds"] - plain["seconds"])
        limit = 2 * plain["cpu_seconds"] + 0.3 * waited + 0.2
        said.append(f"{side} {now['cpu_seconds']:.2f} s of CPU ({plain['cpu_seconds']:.2f} undisturbed)")
        check(now["cpu_seconds"] <= limit, f"{what}: {said[-1]} in {now['seconds']:.1f} s, the limit is {limit:.2f} s")
    return ", ".join(said)


def expect_error(report, within, what):
    expect_given_back(report, what)
    check(report["code"] in ("UNAVAILABLE", "DATA_LOSS"), f"{what}: {report}")
    check("peer \"" in report["message"], f"{what}: the peer is not named: {report}")
    check(report["seconds"] < within, f"{what}: noticed after {report['seconds']} s, the limit is {within}")
