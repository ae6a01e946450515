"""The one module that talks to a Docker engine: raw specs in and out, errors in our words.

Its functions are thin over docker-py's low-level client, whose own models merge specs shallowly and drop fields.
May import: ``errors``, ``ssh``.
"""

import base64
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any
from urllib.parse import quote

import docker
import requests
from docker import auth
from docker.errors import APIError, DockerException, NotFound, create_api_error_from_http_exception
from urllib3.exceptions import HTTPError

from ..errors import SwarmctlError, UnreachableError, WaitTimeoutError
from .ssh import Connection

Raw = dict[str, Any]
# Joining answers after 20 s at the latest and goes on in the background; everything else is quick.
_ANSWER_SEC = 40
_PULL_SEC = 900  # of silence at most
_UPDATE_ATTEMPTS = 6
_POLL_SEC = 0.2


class EngineError(SwarmctlError):
    """The engine refused; the message has its own words.

    Attributes:
        status: HTTP status of the engine's answer.
    """

    def __init__(self, message: str, *next_steps: str, status: int = 0) -> None:
        """Take the message, what to do, and the engine's status."""
        super().__init__(message, *next_steps)
        self.status = status


class OutOfSequenceError(EngineError):
    """Somebody else changed the same thing in between."""


class Engine:
    """A Docker engine, asked over one connection."""

    def __init__(self, client: Any, host: str, problem: Callable[[], str] = str) -> None:
        """Speak to an engine.

        Args:
            client: docker-py's low-level client, whose types nobody keeps.
            host: Name of its machine, for messages; `word` is the same as it is typed.
            problem: Tells what the way to the engine said when it broke.
        """
        self.host = host
        self.word = "here" if host == "this machine" else host
        self._client = client
        self._problem = problem
        self._logins: dict[str, dict[str, str]] = {}

    def info(self) -> Raw:
        """What ``docker info`` prints."""
        return self._raw("describe itself", self._client.info)

    def version(self) -> Raw:
        """What ``docker version`` prints of the engine."""
        return self._raw("tell its version", self._client.version)

    def swarm(self) -> Raw:
        """The cluster with its join tokens; managers only."""
        return self._raw("describe its swarm", self._client.inspect_swarm)

    def nodes(self) -> list[Raw]:
        """All nodes."""
        return self._list("list its nodes", self._client.nodes)

    def tasks(self, filters: Mapping[str, Any] | None = None) -> list[Raw]:
        """Tasks that the filters let through."""
        return self._list("list tasks", lambda: self._client.tasks(filters=dict(filters or {})))

    def services(self, filters: Mapping[str, Any] | None = None) -> list[Raw]:
        """Services that the filters let through."""
        return self._list("list services", lambda: self._client.services(filters=dict(filters or {})))

    def secrets(self) -> list[Raw]:
        """All secrets, without what they hold."""
        return self._list("list secrets", self._client.secrets)

    def configs(self) -> list[Raw]:
        """All configs."""
        return self._list("list configs", self._client.configs)

    def overlay_networks(self) -> list[Raw]:
        """All networks that span nodes."""
        return self._list("list networks", lambda: self._client.networks(filters={"driver": "overlay"}))

    def init_swarm(self, *, advertise: str, pool: str, subnet_size: int, spec: Raw) -> str:
        """Make a swarm; returns the id of the engine's node."""
        made: str = self._ask(
            "make a swarm",
            lambda: self._client.init_swarm(
                advertise_addr=advertise,
                listen_addr="0.0.0.0:2377",  # managers and workers reach it on any of its networks
                default_addr_pool=[pool],
                subnet_size=subnet_size,
                swarm_spec=spec,
            ),
        )
        return made

    def update_swarm(self, change: Callable[[Raw], Raw]) -> None:
        """Change the swarm's spec: `change` gets the whole present one and returns the whole new one."""

        def once() -> None:
            found = self._client.inspect_swarm()
            self._client.update_swarm(version=found["Version"]["Index"], swarm_spec=change(found["Spec"]))

        self._in_sequence("change the swarm's settings", once)

    def update_node(self, node_id: str, change: Callable[[Raw], Raw]) -> None:
        """Change a node's spec: `change` gets the whole present one and returns the whole new one."""

        def once() -> None:
            found = self._client.inspect_node(node_id)
            self._client.update_node(node_id, found["Version"]["Index"], change(found["Spec"]))

        self._in_sequence(f"change node {node_id}", once)

    def remove_node(self, node_id: str) -> None:
        """Forget a node that is down; one that is gone already is fine."""
        try:
            self._ask(f"remove node {node_id}", lambda: self._client.remove_node(node_id))
        except EngineError as error:
            if error.status != requests.codes.not_found:
                raise

    def join(self, *, managers: list[str], token: str, advertise: str) -> None:
        """Have the engine join a swarm; it may still be at it in the background when this returns."""
        try:
            self._ask(
                "join the swarm",
                lambda: self._client.join_swarm(
                    remote_addrs=managers,
                    join_token=token,
                    listen_addr="0.0.0.0:2377",  # as in init_swarm
                    advertise_addr=advertise,
                ),
            )
        except EngineError as error:
            # "Timeout was reached before node joined. The attempt to join … will continue in the background."
            if "will continue in the background" not in str(error):
                raise

    def leave(self, *, force: bool) -> None:
        """Have the engine leave its swarm."""
        self._ask("leave its swarm", lambda: self._client.leave_swarm(force=force))

    def create_secret(self, name: str, data: bytes, labels: Mapping[str, str]) -> None:
        """Store a secret."""
        self._ask(f"store the secret {name}", lambda: self._client.create_secret(name, data, labels=dict(labels)))

    def create_config(self, name: str, data: bytes, labels: Mapping[str, str]) -> str:
        """Store a config; returns its id."""
        made: Raw = self._ask(
            f"store the config {name}", lambda: self._client.create_config(name, data, labels=dict(labels))
        )
        return str(made["ID"])

    def remove_secret(self, name: str) -> None:
        """Remove a secret that no service uses."""
        self._ask(f"remove the secret {name}", lambda: self._client.remove_secret(name))

    def remove_config(self, name_or_id: str) -> None:
        """Remove a config that no service uses."""
        self._ask(f"remove the config {name_or_id}", lambda: self._client.remove_config(name_or_id))

    def unlock_key(self) -> str:
        """The key that managers need after a restart, where autolock is on."""
        answer = self._ask("tell its unlock key", self._client.get_unlock_key)
        return str(answer.get("UnlockKey", ""))

    def create_network(self, name: str, body: Raw) -> None:
        """Make a network, with the keys of the API."""
        self._send(f"make the network {name}", "POST", "/networks/create", {**body, "Name": name})

    def remove_network(self, name: str) -> None:
        """Remove a network that nothing uses."""
        self._send(f"remove the network {name}", "DELETE", f"/networks/{name}")

    def create_service(self, spec: Raw) -> str:
        """Make a service of a whole raw spec; returns its id."""
        headers = self._login(spec)
        made: Raw = self._send(f"create the service {spec['Name']}", "POST", "/services/create", spec, headers=headers)
        return str(made["ID"])

    def update_service(self, service_id: str, version: int, spec: Raw) -> None:
        """Replace a service's spec; its nodes go on with the login they had where we have none.

        Raises:
            OutOfSequenceError: It is not at `version` any more.
        """
        path = f"/services/{service_id}/update?version={version}"
        self._send(f"update the service {spec['Name']}", "POST", path, spec, headers=self._login(spec))

    def service(self, name_or_id: str) -> Raw:
        """One service."""
        found: Raw = self._send(f"describe the service {name_or_id}", "GET", f"/services/{name_or_id}")
        return found

    def remove_service(self, service_id: str) -> None:
        """Remove a service; its tasks end later."""
        self._send(f"remove the service {service_id}", "DELETE", f"/services/{service_id}")

    def config_data(self, name: str) -> bytes:
        """What a config holds."""
        found = self._send(f"read the config {name}", "GET", f"/configs/{name}")
        return base64.b64decode(found["Spec"]["Data"])

    def distribution(self, image: str) -> Raw:
        """An image's digest and platforms, as its registry tells the engine."""
        path = f"/distribution/{quote(image, safe='/:@')}/json"
        found: Raw = self._send(f"find the image {image}", "GET", path, headers=self._login_to(image))
        return found

    def has_login(self, image: str) -> bool:
        """Whether this user has logged in (``docker login``) to the image's registry."""
        return bool(self._login_to(image))

    def _login(self, spec: Raw) -> dict[str, str]:
        return self._login_to(spec["TaskTemplate"]["ContainerSpec"]["Image"])

    def _login_to(self, image: str) -> dict[str, str]:
        """The header with which nodes may pull an image: from this user's Docker configuration, or none."""
        try:
            registry, _ = auth.resolve_repository_name(image)
            if registry in self._logins:  # a program that keeps passwords may take its time
                return self._logins[registry]
            header: bytes | None = auth.get_config_header(self._client, registry)
        except (DockerException, OSError, ValueError) as error:
            raise SwarmctlError(
                f"your login for the registry of {image} can't be read: {error}",
                "docker login REGISTRY   # writes it anew",
                "cat ~/.docker/config.json   # names the program that keeps it: credsStore, credHelpers",
            ) from error
        self._logins[registry] = {"X-Registry-Auth": header.decode()} if header else {}
        return self._logins[registry]

    def run_in(self, container_id: str, argv: Sequence[str]) -> tuple[int, bytes, bytes]:
        """Run a program in a container; returns its exit status and what it printed on either stream."""

        def run() -> tuple[int, bytes, bytes]:
            made = self._client.exec_create(container_id, list(argv))
            out, err = self._client.exec_start(made["Id"], demux=True)
            return self._client.exec_inspect(made["Id"])["ExitCode"], out or b"", err or b""

        answer: tuple[int, bytes, bytes] = self._ask(f"run {argv[0]} in a container", run)
        return answer

    @contextmanager
    def archive(self, container_id: str, path: str) -> Iterator[Callable[[int], bytes]]:
        """A file or folder of a container as a tar archive, by a function that reads so many bytes of it.

        Raises:
            EngineError: There is no such path.
            UnreachableError: The engine does not answer, or stops in the middle.
        """
        what, plain = f"copy {path}", {"Accept-Encoding": "identity"}  # weights don't get smaller, and a Pi is slow
        where = f"/containers/{container_id}/archive?path={quote(path)}"
        reply = self._send(what, "GET", where, headers=plain, stream=True)

        def read(size: int) -> bytes:
            try:
                data: bytes = reply.raw.read(size)
            except (HTTPError, OSError) as error:
                raise self._broken(what, error) from error
            return data

        try:
            yield read
        finally:
            reply.close()

    def runs_task_of(self, service: str) -> bool:
        """Whether this very engine runs a container of a service, whatever the managers think."""
        filters = {"label": f"com.docker.swarm.service.name={service}"}
        return bool(self._list("list its containers", lambda: self._client.containers(filters=filters)))

    def pull(self, image: str) -> None:
        """Have the engine fetch an image, unless it has it.

        Raises:
            EngineError: It can't be had.
        """
        try:
            self._send(f"look for the image {image}", "GET", f"/images/{quote(image, safe='/:@')}/json")
        except EngineError as error:
            if error.status != requests.codes.not_found:
                raise
            what, path = f"pull {image}", f"/images/create?fromImage={quote(image, safe='')}"
            said: bytes = self._send(what, "POST", path, headers=self._login_to(image), timeout=_PULL_SEC, raw=True)
            failures = [line["error"] for line in map(json.loads, said.splitlines()) if "error" in line]
            if failures:
                raise EngineError(f"{self.host}: the Docker engine did not {what}: {failures[-1]}") from error

    @contextmanager
    def container(self, image: str, command: Sequence[str], volume: str, folder: str) -> Iterator[str]:
        """A container beside the swarm, with a volume in a folder; its id. It is not started, and removed at the end.

        One that was left by somebody who was killed in the middle goes first.

        Raises:
            EngineError: The engine refused.
        """

        def create() -> str:
            mount = docker.types.Mount(folder, volume, type="volume")
            config = self._client.create_host_config(mounts=[mount], network_mode="none")
            name = f"swarmctl-{volume}"
            with suppress(NotFound):
                self._client.remove_container(name, force=True)
            made: Raw = self._client.create_container(image, list(command), name=name, host_config=config)
            return str(made["Id"])

        self.pull(image)
        made: str = self._ask(f"make a container of {image}", create)
        try:
            yield made
        finally:
            self._ask("remove a container", lambda: self._client.remove_container(made, force=True))

    def run_to_end(self, container_id: str) -> tuple[int, str]:
        """Start a container and wait for its end; returns its exit status and what it printed."""

        def run() -> tuple[int, str]:
            self._client.start(container_id)
            status: int = self._client.wait(container_id, timeout=_ANSWER_SEC)["StatusCode"]
            return status, self._client.logs(container_id).decode(errors="replace")

        answer: tuple[int, str] = self._ask("run a container", run)
        return answer

    def unpack_into(self, container_id: str, folder: str, archive: Iterator[bytes]) -> None:
        """Unpack a tar archive in a container, owners and all, as it comes."""
        path = f"/containers/{container_id}/archive?path={quote(folder)}"
        self._send(f"write to {folder}", "PUT", path, content=archive, raw=True)

    def task_logs(self, task_id: str, *, since: float = 0, tail: int | None = None, timeout: float = 5) -> bytes:
        """What a task has printed, with a time on each line, in the engine's framing of the two streams."""
        lines = "all" if tail is None else str(tail)
        path = f"/tasks/{task_id}/logs?stdout=1&stderr=1&timestamps=1&since={since:.9f}&tail={lines}"
        found: bytes = self._send("give a task's logs", "GET", path, timeout=timeout, raw=True)
        return found

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def _in_sequence(self, what: str, once: Callable[[], None]) -> None:
        """Read, change and write again while somebody else's write came between."""
        for _ in range(_UPDATE_ATTEMPTS - 1):
            with suppress(OutOfSequenceError):
                self._ask(what, once)
                return
        self._ask(what, once)

    def _send(
        self,
        what: str,
        method: str,
        path: str,
        body: Raw | None = None,
        *,
        headers: Mapping[str, str] | None = None,
        timeout: float = _ANSWER_SEC,
        raw: bool = False,
        stream: bool = False,
        content: Iterator[bytes] | None = None,
    ) -> Any:
        """Ask with the API's own words what docker-py has none for, or would take apart first.

        Returns:
            What the answer's JSON says; with `raw` its bytes, with `stream` the answer itself, still to be read.
        """

        def call() -> Any:
            url = f"{self._client.base_url}/v{self._client.api_version}{path}"
            reply = self._client.request(
                method, url, json=body, data=content, headers=headers, timeout=timeout, stream=stream
            )
            if not reply.ok:
                create_api_error_from_http_exception(requests.HTTPError(response=reply))
            if stream:
                return reply
            if raw:
                return reply.content
            return reply.json() if reply.content else {}

        return self._ask(what, call)

    def _raw(self, what: str, call: Callable[[], Any]) -> Raw:
        answer: Raw = self._ask(what, call)
        return answer

    def _list(self, what: str, call: Callable[[], Any]) -> list[Raw]:
        answer: list[Raw] = self._ask(what, call)
        return answer

    def _ask(self, what: str, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except APIError as error:
            said = error.explanation or error
            kind = OutOfSequenceError if "update out of sequence" in str(said) else EngineError
            raise kind(
                f"{self.host}: the Docker engine did not {what}: {said}", status=error.status_code or 0
            ) from error
        except (requests.RequestException, DockerException, OSError) as error:
            raise self._broken(what, error) from error

    def _broken(self, what: str, error: Exception) -> SwarmctlError:
        said = self._problem() or str(error)
        if isinstance(error, requests.Timeout):
            return WaitTimeoutError(
                f"{self.host}: the Docker engine did not {what} within {_ANSWER_SEC} s",
                f"swarmctl doctor {self.word}",
            )
        return UnreachableError(
            f"{self.host}: the Docker engine can't be asked to {what}: {said}", f"swarmctl doctor {self.word}"
        )


@contextmanager
def engine_on(connection: Connection, *, sudo: bool = False) -> Iterator[Engine]:
    """The engine of a machine, for as long as the block lasts.

    Raises:
        UnreachableError: It does not answer.
    """
    name = "this machine" if connection.host.is_here else connection.host.name
    with connection.docker(sudo) as way:
        try:
            client = docker.APIClient(base_url=str(way), version="auto", timeout=_ANSWER_SEC)
        except (DockerException, requests.RequestException, OSError) as error:
            said = getattr(way, "last_error", "") or _innermost(error)
            raise UnreachableError(
                f"{name}: its Docker engine does not answer: {said}", f"swarmctl doctor {connection.host.name}"
            ) from error
        engine = Engine(client, name, lambda: str(getattr(way, "last_error", "")))
        try:
            yield engine
        finally:
            engine.close()


def wait_until(check: Callable[[], bool], *, deadline_sec: float, what: str) -> None:
    """Ask again and again until `check` says yes.

    Raises:
        WaitTimeoutError: It did not within `deadline_sec`.
    """
    end = time.monotonic() + deadline_sec
    while not check():
        if time.monotonic() > end:
            raise WaitTimeoutError(f"{what}: not within {deadline_sec:.0f} s")
        time.sleep(_POLL_SEC)


def _innermost(error: BaseException) -> str:
    """What really happened, out of the layers that requests and docker-py put around it."""
    while error.__cause__ or error.__context__:
        error = error.__cause__ or error.__context__ or error
    return str(error) or type(error).__name__
