"""A stand-in for a model hub: as much of its HTTP interface as uploads and downloads use."""

import base64
import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

TOKEN = "hf_token_of_the_test"
LARGE = 10_000  # bytes; larger files are uploaded by themselves


class Hub:
    """What the hub holds.

    Attributes:
      files: name of a model -> path -> content.
      private: names of models that only their owners see.
      objects: SHA-256 -> content of large files that no commit has named yet.
      address: of the server.
    """

    def __init__(self) -> None:
        self.files: dict[str, dict[str, bytes]] = {}
        self.private: set[str] = set()
        self.objects: dict[str, bytes] = {}
        self.address = ""

    def commit(self, name: str, lines: list[dict[str, Any]]) -> str:
        """Adds the files of a commit's lines to a model."""
        for line in lines:
            value = line["value"]
            if line["key"] == "file":
                self.files[name][value["path"]] = base64.b64decode(value["content"])
            if line["key"] == "lfsFile":
                self.files[name][value["path"]] = self.objects[value["oid"]]
        return self.sha(name)

    def sha(self, name: str) -> str:
        """The name of a model's commit, by its content."""
        found = hashlib.sha1()
        for path, content in sorted(self.files[name].items()):
            found.update(path.encode() + b"\0" + content)
        return found.hexdigest()


class Handler(BaseHTTPRequestHandler):
    """Answers requests."""

    hub: Hub

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing."""

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.headers.get("Authorization") != f"Bearer {TOKEN}":
            self.answer({"error": "Invalid username or password."}, 401)
        elif self.path == "/api/repos/create":
            said = json.loads(body)
            owner = said.get("organization") or "someone"
            if owner == "others":
                self.answer({"error": "You don't have the rights to create a model there."}, 403)
                return
            name = f"{owner}/{said['name']}"
            status = 409 if name in self.hub.files else 200
            private = said.get("private") or said.get("visibility") == "private"  # by version
            if private and name not in self.hub.files:
                self.hub.private.add(name)
            self.hub.files.setdefault(name, {})  # before the answer, after which the client asks
            self.answer({"url": f"{self.hub.address}/{name}"}, status)
        elif self.path == "/api/validate-yaml":
            self.answer({"errors": [], "warnings": []})
        elif found := re.fullmatch("/api/models/(.+)/preupload/main", self.path):
            files = [
                {
                    "path": file["path"],
                    "uploadMode": "lfs" if file["size"] > LARGE else "regular",
                    "shouldIgnore": False,
                }
                for file in json.loads(body)["files"]
            ]
            self.answer({"files": files})
        elif re.fullmatch(r"/(.+)\.git/info/lfs/objects/batch", self.path):
            given = json.loads(body)["objects"]
            objects = [
                {**each, "actions": {"upload": {"href": f"{self.hub.address}/put/{each['oid']}"}}}
                for each in given
            ]
            self.answer({"transfer": "basic", "objects": objects})
        elif found := re.fullmatch("/api/models/(.+)/commit/main", self.path):
            lines = [json.loads(line) for line in body.splitlines()]
            sha = self.hub.commit(found[1], lines)
            address = f"{self.hub.address}/{found[1]}/commit/{sha}"
            self.answer({"success": True, "commitOid": sha, "commitUrl": address})
        else:
            self.answer({"error": f"POST {self.path}?"}, 404)

    def do_PUT(self) -> None:
        content = self.rfile.read(int(self.headers["Content-Length"]))
        self.hub.objects[hashlib.sha256(content).hexdigest()] = content
        self.answer({})

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if found := re.fullmatch("/([^/]+/[^/]+)/resolve/[^/]+/(.+)", path):
            self.send_file(found[1], found[2])
            return
        found = re.fullmatch("/api/models/([^/]+/[^/]+)(/tree/.*|/revision/.*)?", path)
        if found is None or found[1] not in self.hub.files:
            self.answer({"error": "Repository not found"}, 404, {"X-Error-Code": "RepoNotFound"})
            return
        name, what = found[1], found[2] or ""
        files = self.hub.files[name]
        if what.startswith("/tree/"):
            self.answer(
                [
                    {"type": "file", "path": path, "size": len(content), "oid": digest(content)}
                    for path, content in files.items()
                ]
            )
        else:
            siblings = [{"rfilename": path} for path in files]
            told = {"sha": self.hub.sha(name), "private": name in self.hub.private}
            self.answer({"id": name, "siblings": siblings, **told})

    def send_file(self, name: str, path: str) -> None:
        """A file of a model."""
        content = self.hub.files.get(name, {}).get(path)
        if content is None:
            self.answer({"error": "Entry not found"}, 404, {"X-Error-Code": "EntryNotFound"})
            return
        self.send_response(200)
        self.send_header("X-Repo-Commit", self.hub.sha(name))
        self.send_header("ETag", f'"{digest(content)}"')
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content)

    def answer(self, said: Any, status: int = 200, headers: dict[str, str] | None = None) -> None:
        """A JSON answer."""
        body = json.dumps(said).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


def digest(content: bytes) -> str:
    """What names a content."""
    return hashlib.sha1(content).hexdigest()


@contextmanager
def serving() -> Iterator[Hub]:
    """A hub on this machine, empty."""
    hub = Hub()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Of", (Handler,), {"hub": hub}))
    hub.address = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
