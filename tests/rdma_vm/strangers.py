"""Whoever comes to a port of two hosts without being a peer: answered, and no hindrance to those who are."""
import json
import os
import time

import hosts
from hosts import HERE, THERE, Peer, check, expect_ok


def strangers(transport):
    receiver = Peer([f"{hosts.BIN}/rdma_vm_peer", "receive", transport, f"{THERE}:7099", "2"], True)
    receiver.await_text("listening")

    def say(words):
        return hosts.say(THERE, 7099, words)

    http = say(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
    check(b"400 Bad Request" in http, f"HTTP was answered {http}")
    tls = say(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"r" * 500)
    check(b"TLS" in tls, f"TLS was answered {tls}")
    giant = say(b"TRIBLINK" + (1 << 63).to_bytes(8, "little"))
    check(b"9223372036854775808" in giant, f"a hello of 2^63 bytes was answered {giant}")
    hello = b"\x08\x02\x12\x10" + b"i" * 16  # version 2
    version = say(b"TRIBLINK" + len(hello).to_bytes(8, "little") + hello)
    check(b"speaks version 2" in version, f"version 2 was answered {version}")
    for garbage in (b"\xff" * 64, b"TRIBLINK" + (4).to_bytes(8, "little") + b"\xff" * 4, os.urandom(4096)):
        check(say(garbage), f"{garbage[:20]} was answered with silence")
    sender = Peer([f"{hosts.BIN}/rdma_vm_peer", "send", transport, f"{THERE}:7099", "2"], False)
    expect_ok(receiver, sender, "after the strangers")
    return "HTTP, TLS, 2^63 bytes, version 2 and garbage were answered in words, then a link was made"


def aggregator_strangers(_):
    """Every port of a running aggregator hears what no peer says; then a rack joins it and a run goes through."""
    directory = "/tmp/strangers"
    os.makedirs(directory)
    link = "[transport]\nkind = \"auto\"\nlisten = \"%s:0\"\n[transport.roce]\narena_bytes = \"64MiB\"\n"
    with open(f"{directory}/global.toml", "w") as file:
        file.write(f"[node]\nname = \"global\"\nlisten = \"{HERE}:7074\"\n" + link % HERE +
                   "[run]\nname = \"vm\"\nrounds = 1\nmodel = \"logreg\"\nstartup_limit_s = 200\n"
                   "[cohort]\nminimum = 1\n[straggler]\ndeadline_s = 120\nrejoin_grace_s = 20\n"
                   f"[checkpoint]\ndirectory = \"{directory}/checkpoints\"\n")
    hosts.agent("write", path="/tmp/rack-strangers.toml",
          text=f"[node]\nname = \"rack\"\nlisten = \"{THERE}:7084\"\nparent = \"{HERE}:7074\"\n" + link % THERE)
    root = Peer([f"{hosts.BIN}/tributary", "serve", f"{directory}/global.toml"], False)
    # The front door, and the links' ports of RoCE and of tcp; shared memory has none.
    limit = time.monotonic() + 60
    while len(ports := hosts.listening_ports(root.process.pid)) < 3:
        check(root.process.poll() is None and time.monotonic() < limit, f"the root listens at {ports} only:\n{root.text()}")
        time.sleep(0.1)
    check(7074 in ports, f"the front door is not among {ports}")
    giant = b"TRIBLINK" + (1 << 63).to_bytes(8, "little")
    told = {b"GET / HTTP/1.1\r\nHost: x\r\n\r\n": b"400 Bad Request",
            b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"r" * 500: b"TLS",
            giant: b"9223372036854775808",
            b"\xff" * 64: b"no link hello"}
    for port in sorted(ports):
        for words, answer in told.items():
            heard = hosts.say(HERE, port, words)
            # The front door speaks gRPC, and answers such things in its own way or not at all.
            check(port == 7074 or answer in heard, f"port {port} was told {words[:20]} and answered {heard}")
            check(root.process.poll() is None, f"{words[:20]} at port {port} ended the root:\n{root.text()}")
    others = [Peer([f"{hosts.BIN}/tributary", "serve", "/tmp/rack-strangers.toml"], True),
              Peer([f"{hosts.BIN}/e2e_client", "c0", "0", f"{THERE}:7084"], True)]
    code = root.wait(300)
    check(code == 0, f"after the strangers the root ended with {code}:\n{root.text()}\n{others[0].text()}")
    for other in others:
        other.wait(60)
    for process in (root, others[0]):
        process.expect_accounted()
    with open(f"{directory}/checkpoints/vm/rounds.jsonl") as file:
        rounds = [json.loads(line) for line in file]
    check(len(rounds) == 1 and rounds[0]["committed"] and rounds[0]["transport"] == "roce", f"{rounds}")
    return f"{len(told)} kinds of stranger at each of {len(ports)} ports, then a rack joined over RoCE and its round was committed"
