"""The second emulated host: starts, signals and awaits processes for scenarios.py on the first.

One JSON object a line each way over TCP, one request at a time on a connection.
"""
import json
import os
import signal
import socketserver
import subprocess
import threading

processes = {}
lock = threading.Lock()


def start(request):
    name = request["name"]
    log = open(f"/tmp/{name}.log", "wb")
    process = subprocess.Popen(request["argv"], stdout=log, stderr=subprocess.STDOUT, start_new_session=True)
    with lock:
        processes[name] = process
    return {"pid": process.pid}


def send_signal(request):
    os.kill(processes[request["name"]].pid, getattr(signal, request["signal"]))
    return {}


def wait(request):
    process = processes[request["name"]]
    try:
        code = process.wait(request["timeout"])
    except subprocess.TimeoutExpired:
        code = None
    return {"code": code, "log": read(request)["text"]}


def read(request):
    with open(f"/tmp/{request['name']}.log", errors="replace") as file:
        return {"text": file.read()}


def shell(request):
    done = subprocess.run(request["command"], shell=True, capture_output=True, text=True, timeout=60)
    return {"code": done.returncode, "text": done.stdout + done.stderr}


def write(request):
    with open(request["path"], "w") as file:
        file.write(request["text"])
    return {}


class Handler(socketserver.StreamRequestHandler):
    def handle(self):
        for line in self.rfile:
            request = json.loads(line)
            verbs = {"start": start, "signal": send_signal, "wait": wait, "read": read, "shell": shell, "write": write}
            try:
                answer = verbs[request["verb"]](request)
            except Exception as error:  # told to the other side, which fails the scenario
                answer = {"error": repr(error)}
            self.wfile.write(json.dumps(answer).encode() + b"\n")


class Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True


if __name__ == "__main__":
    Server(("10.7.0.2", 9000), Handler).serve_forever()
