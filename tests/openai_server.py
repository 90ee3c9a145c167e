"""A local server with the OpenAI protocol that fails as real ones do. Tests and notebooks use it and pay nothing."""

import json
import re
import socket
import threading
import time
from collections import Counter, defaultdict
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

# Outcomes that a plan can name: right, 429, 429:SECONDS (with Retry-After), quota, 401, 404, 400, 500, late,
# cut (the connection closes halfway), malformed (the text is no JSON), broken (the HTTP body is no JSON), empty,
# nothing (no choices), refusing, filtered, wrong (another item), statement (no question), long (out of tokens),
# spent (out of tokens before the text begins), breaks (an error in the middle of a stream),
# reported (status 200 and an error in the body)


class FaultyServer:
    """`plan` maps a part of a request's last message to its outcomes, in order.

    When they are used up, and for all other requests, the answer is right.

    `transformers` is the behaviour of `transformers serve`, as tests/test_real_server.py finds it: it accepts
    `response_format` and ignores it, counts the tokens of a stream unasked, says `detail` for an error that it
    knows and nothing for others, after which a call on the same connection is lost.
    """

    def __init__(
        self,
        plan=None,
        structured="schema",
        late=1.0,
        delay=0.0,
        limit_name=None,
        batch_polls=1,
        batch_plan=(),
        lose_create=0,
        reply=None,
        transformers=False,
        only_model=None,
        refused_fields=(),
        port=0,  # a free one; answers in a cache belong to the address of a server
    ):
        self.plan = {part: list([what] if isinstance(what, str) else what) for part, what in (plan or {}).items()}
        self.structured = structured  # schema, json or text
        self.late, self.delay, self.limit_name = late, delay, limit_name
        self.batch_polls, self.batch_plan, self.lose_create = batch_polls, list(batch_plan), lose_create
        self.transformers, self.only_model, self.refused_fields = transformers, only_model, refused_fields
        self.reply = reply  # a function from the body of a call to a text, instead of questions as JSON
        self.port = port
        self.asked, self.answered, self.outcomes = Counter(), Counter(), defaultdict(list)
        self.times, self.keys, self.bodies = [], set(), []
        self.input_tokens = self.output_tokens = self.batch_input_tokens = self.batch_output_tokens = 0
        self.most_at_once = self._now = 0
        self.files, self.batches, self.lock = {}, {}, threading.Lock()

    def __enter__(self):
        owner = self
        handler = type("Handler", (_Handler,), {"owner": owner})
        self.http = ThreadingHTTPServer(("127.0.0.1", self.port), handler)
        self.http.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.http.server_port}/v1"
        self.thread = threading.Thread(target=self.http.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.http.shutdown()
        self.http.server_close()

    def next_for(self, prompt: str) -> str:
        "The outcome of this request."
        with self.lock:
            for part, steps in self.plan.items():
                if part in prompt and steps:
                    return steps[0] if steps[0].endswith("!") else steps.pop(0)  # `500!` happens every time
        return "right"

    def complete(self, body: dict, what: str, batch: bool = False) -> dict:
        "A completion, and the tokens it is billed for."
        prompt = body["messages"][-1]["content"]
        item = "" if self.reply else re.search(r"^item: (.+)$", prompt, re.M)[1]
        fields = dict(re.findall(r"^([^:\n]+): (.+)$", prompt, re.M))
        asks = fields.get("property") or next(
            (v.split(" (")[0].split(" ->")[0] for k, v in reversed(fields.items()) if k.startswith("step")), ""
        )
        question = (
            f"Say it again: {fields['question']}"
            if "question" in fields
            else f"What is the {asks} of {fields.get('subject')}?"
        )
        texts = dict(
            malformed='{"item": "' + item,
            empty="",
            wrong=json.dumps(dict(item="0000000000", question="Who is it?")),
            statement=json.dumps(dict(item=item, question="It is so.")),
            refusing=None,
            filtered=None,
            long='{"item"',
            spent=None,
        )
        right = (
            question
            if self.transformers or (self.structured == "text" and "response_format" not in body)
            else json.dumps(dict(item=item, question=question))
        )
        content = texts.get(what, self.reply(body) if self.reply else right)
        usage = dict(
            prompt_tokens=sum(len(m["content"]) for m in body["messages"]) // 4,
            completion_tokens=len(content or "") // 4 + 1,
        )
        usage["total_tokens"] = sum(usage.values())
        with self.lock:
            kind = "batch_" if batch else ""
            for name, tokens in (
                ("input_tokens", usage["prompt_tokens"]),
                ("output_tokens", usage["completion_tokens"]),
            ):
                setattr(self, kind + name, getattr(self, kind + name) + tokens)
        message = dict(
            role="assistant", content=content, refusal="I cannot help with that." if what == "refusing" else None
        )
        reason = dict(filtered="content_filter", long="length", spent="length").get(what, "stop")
        return dict(
            id="c1",
            object="chat.completion",
            created=int(time.time()),
            model=body["model"],
            usage=usage,
            choices=[] if what == "nothing" else [dict(index=0, message=message, finish_reason=reason, logprobs=None)],
        )

    def refuses(self, body: dict) -> str | None:
        "Why the server refuses this body, or None."
        if self.only_model not in (None, body["model"]):
            return f"Server is pinned to '{self.only_model}'; requested '{body['model']}'."
        if refused := [name for name in self.refused_fields if name in body]:
            return f"Unexpected fields in the request: {set(refused)}"
        kind = body.get("response_format", {}).get("type")
        if (kind == "json_schema" and self.structured != "schema") or (
            kind == "json_object" and self.structured == "text"
        ):
            return f"response_format {kind} is not supported"
        if self.limit_name and any(k in body for k in {"max_tokens", "max_completion_tokens"} - {self.limit_name}):
            other = ({"max_tokens", "max_completion_tokens"} - {self.limit_name}).pop()
            return f"Unsupported parameter: use {self.limit_name} instead of {other}"
        return None

    def finish_batch(self, batch: dict, plan: dict):
        "Answer the lines of a batch, all of them or, when it expires, the first few."
        good, bad = [], []
        for n, line in enumerate(json.loads(x) for x in self.files[batch["input_file_id"]].decode().splitlines()):
            body, about = line["body"], line["body"]["messages"][-1]["content"]
            entry = dict(id=f"r{n}", custom_id=line["custom_id"], response=None, error=None)
            if n >= plan.get("expire_after", 10**9):
                bad.append(
                    entry
                    | dict(
                        error=dict(
                            code="batch_expired",
                            message="This request could not be executed before the completion window expired.",
                        )
                    )
                )
                continue
            if n in plan.get("lose", ()):
                continue
            self.asked[about] += 1
            what, refusal = self.next_for(about).rstrip("!"), self.refuses(body)
            self.outcomes[about].append(what)
            if refusal or what in ("500", "429", "400"):
                status = 400 if refusal else int(what)
                bad.append(
                    entry
                    | dict(
                        response=dict(
                            status_code=status, request_id="q", body=dict(error=dict(message=refusal or "no"))
                        )
                    )
                )
            else:
                good.append(
                    entry
                    | dict(response=dict(status_code=200, request_id="q", body=self.complete(body, what, batch=True)))
                )
                self.answered[about] += what == "right"
        for name, lines in (("output_file_id", good), ("error_file_id", bad)):
            if lines:
                batch[name] = f"file-{len(self.files)}"
                self.files[batch[name]] = "".join(json.dumps(x) + "\n" for x in lines).encode()
        batch["status"] = "expired" if "expire_after" in plan else "completed"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    lost = False  # whether the server closes this connection at the next call

    def log_message(self, *_):
        pass

    def reply(self, status: int, data, headers=()):
        data = data if isinstance(data, bytes) else json.dumps(data).encode()
        self.send_response(status)
        for k, v in (("Content-Type", "application/json"), ("Content-Length", len(data)), *headers):
            self.send_header(k, str(v))
        self.end_headers()
        self.wfile.write(data)

    def fail(self, status: int, message: str, code=None, headers=()):
        if not self.owner.transformers:
            return self.reply(status, dict(error=dict(message=message, type="error", code=code, param=None)), headers)
        if status < 500:
            return self.reply(status, dict(detail=message), headers)
        self.lost = True  # the connection, and no header says so
        return self.reply(status, b"Internal Server Error", headers)

    def send_chunks(self, whole: dict, what: str, counts: bool):
        "A completion as a stream of events, in pieces of four letters."
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        head = {k: whole[k] for k in ("id", "created", "model")} | dict(object="chat.completion.chunk")

        def send(delta=None, reason=None, **more):
            choices = [] if delta is None else [dict(index=0, delta=delta, finish_reason=reason)]
            self.wfile.write(b"data: " + json.dumps(head | dict(choices=choices) | more).encode() + b"\n\n")
            self.wfile.flush()

        send(dict(role="assistant"))
        choice = whole["choices"][0] if whole["choices"] else dict(message={}, finish_reason=None)
        message = choice["message"]
        text = message.get("content") or ""
        for at in range(0, len(text), 4):
            if what in ("breaks", "cut") and at > len(text) // 2:
                if what == "breaks":
                    self.wfile.write(b'data: {"error": "index out of range in self"}\n\n')
                return self.cut()
            send(dict(content=text[at : at + 4]))
        if message.get("refusal"):
            send(dict(refusal=message["refusal"]))
        if self.owner.transformers:
            send({}, choice["finish_reason"], usage=whole["usage"])
        else:
            send({}, choice["finish_reason"])
            if counts:
                send(usage=whole["usage"])
            self.wfile.write(b"data: [DONE]\n\n")
        self.wfile.flush()
        return self.cut()

    def do_POST(self):
        data, s = self.rfile.read(int(self.headers["Content-Length"])), self.owner
        s.keys.add(self.headers.get("Authorization"))
        if self.lost:
            return self.cut()
        if self.path == "/v1/files":
            name = f"file-{len(s.files)}"
            boundary = re.search(r'boundary="?([^";]+)', self.headers["Content-Type"])[1].encode()
            s.files[name] = (
                next(p for p in data.split(b"--" + boundary) if b'filename="' in p)
                .split(b"\r\n\r\n", 1)[1]
                .removesuffix(b"\r\n")
            )
            return self.reply(
                200,
                dict(
                    id=name,
                    object="file",
                    bytes=len(data),
                    created_at=0,
                    filename="f.jsonl",
                    purpose="batch",
                    status="processed",
                ),
            )
        if self.path == "/v1/batches":
            body, name = json.loads(data), f"batch-{len(s.batches)}"
            s.batches[name] = dict(
                id=name,
                object="batch",
                endpoint=body["endpoint"],
                input_file_id=body["input_file_id"],
                completion_window="24h",
                created_at=0,
                status="in_progress",
                polls=0,
                number=len(s.batches),
            )
            if s.lose_create:  # the batch is made, but the answer never arrives
                s.lose_create -= 1
                return self.cut()
            return self.reply(200, s.batches[name])
        if self.path == "/v1/chat/completions":
            with s.lock:
                s._now += 1
                s.most_at_once = max(s.most_at_once, s._now)
            try:
                return self.chat(json.loads(data))
            except (BrokenPipeError, ConnectionResetError):  # the client did not wait
                self.close_connection = True
            finally:
                with s.lock:
                    s._now -= 1
            return None
        return self.fail(404, "no such path")

    def cut(self):
        self.close_connection = True
        self.connection.shutdown(socket.SHUT_RDWR)

    def chat(self, body: dict):
        s, prompt = self.owner, body["messages"][-1]["content"]
        refusal = s.refuses(body)
        if refusal:
            return self.fail(422 if "fields" in refusal else 400, refusal)
        with s.lock:
            s.asked[prompt] += 1
            s.times.append((time.monotonic(), prompt))
            s.bodies.append(body)
        what = s.next_for(prompt).rstrip("!")
        s.outcomes[prompt].append(what)
        time.sleep(s.delay)
        if what.startswith("429"):
            return self.fail(429, "too many requests", headers=[("Retry-After", what[4:])] if ":" in what else ())
        if what == "quota":
            return self.fail(429, "You exceeded your current quota", "insufficient_quota")
        if what in ("400", "401", "404", "500"):
            # real servers repeat keys in such messages
            return self.fail(int(what), f"Incorrect: {self.headers.get('Authorization')}")
        if what == "reported":
            return self.reply(200, dict(error=dict(code=502, message="the model is overloaded")))
        whole = s.complete(body, what)
        data = json.dumps(whole).encode()
        if what == "late":
            time.sleep(s.late)
        if body.get("stream") and what not in ("broken", "nothing"):
            with s.lock:
                s.answered[prompt] += what == "right"
            return self.send_chunks(whole, what, (body.get("stream_options") or {}).get("include_usage"))
        if what == "broken":
            data = b'{"id": "c1", "choi'
        if what == "cut":
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data[: len(data) // 2])
            self.wfile.flush()
            return self.cut()
        with s.lock:
            s.answered[prompt] += what == "right"
        return self.reply(200, data)

    def do_GET(self):
        s = self.owner
        if self.path.startswith("/v1/batches/"):
            batch = s.batches[self.path.split("/")[-1]]
            batch["polls"] += 1
            if batch["status"] == "in_progress" and batch["polls"] >= s.batch_polls:
                plan = s.batch_plan[batch["number"]] if batch["number"] < len(s.batch_plan) else {}
                if plan.get("fail"):
                    batch |= dict(
                        status="failed",
                        errors=dict(
                            object="list",
                            data=[dict(code="token_limit_exceeded", message="Enqueued token limit reached")],
                        ),
                    )
                else:
                    s.finish_batch(batch, plan)
            return self.reply(200, batch)
        if self.path.startswith("/v1/batches"):
            return self.reply(200, dict(object="list", data=list(s.batches.values()), has_more=False))
        if self.path.startswith("/v1/files/"):
            return self.reply(200, s.files[self.path.split("/")[3]])
        return self.fail(404, "no such path")
