//! `outlast run --confine-net`: nothing of an agent gets out but through its proxy, and there only to hosts it may reach.

use std::{
    fs,
    net::{TcpListener, UdpSocket},
    os::unix::net::UnixListener,
};

use crate::bed::{Bed, text};

const ASK: &str = r#"curl -sS --fail-with-body -o answer https://api.openai.com/v1/chat/completions \
    -H "Authorization: Bearer $OPENAI_API_KEY" -H 'Content-Type: application/json' \
    -d '{"model": "gpt-4o-mini", "max_tokens": 20, "messages": [{"role": "user", "content": "hello"}]}'"#;

#[test]
fn nothing_gets_out_but_through_the_proxy() {
    let bed = Bed::new();
    let python =
        std::env::var("OUTLAST_TEST_PYTHON").expect("OUTLAST_TEST_PYTHON names a Python: run `make test`");
    let (tcp, udp) = (TcpListener::bind("127.0.0.1:0").unwrap(), UdpSocket::bind("127.0.0.1:0").unwrap());
    tcp.set_nonblocking(true).unwrap();
    udp.set_nonblocking(true).unwrap();
    let program = format!(
        r#"
import socket
def tries(name, what):
    try:
        what()
        print(name, "out")
    except OSError as e:
        print(name, "in")
def tcp(host, port):
    socket.create_connection((host, port), 5)
def udp(host, port):
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    s.connect((host, port))
    s.send(b"x")
    s.send(b"x")
tries("here", lambda: tcp("127.0.0.1", {tcp}))
tries("far", lambda: tcp("1.1.1.1", 443))
tries("metadata", lambda: tcp("169.254.169.254", 80))
tries("udp", lambda: udp("127.0.0.1", {udp}))
tries("dns", lambda: udp("1.1.1.1", 53))
"#,
        tcp = tcp.local_addr().unwrap().port(),
        udp = udp.local_addr().unwrap().port()
    );
    let file = bed.write("tries.py", &program);
    let script = format!("{python} {} > tried; {ASK}", text(&file));
    bed.does(&["run", "--run", "r", "--confine-net", "--", "sh", "-c", &script]).code(0);
    assert_eq!(bed.text("work/tried"), "here in\nfar in\nmetadata in\nudp in\ndns in\n");
    assert!(tcp.accept().is_err() && udp.recv(&mut [0]).is_err(), "nothing came");
    assert!(bed.text("work/answer").contains("answer "), "{}", bed.text("work/answer"));
    assert_eq!((bed.paid(), bed.spent("r", "calls")), (1, 1));
}

// Bug: an agent without a network had its calls made by a daemon outside, with the user's own login, and its run was
// "completed, 0 calls paid". Cause: Unix sockets are reached by a path, whatever network a process is in.
#[test]
fn no_socket_of_a_process_outside_is_reached_but_one_that_is_allowed() {
    let bed = Bed::new();
    let python =
        std::env::var("OUTLAST_TEST_PYTHON").expect("OUTLAST_TEST_PYTHON names a Python: run `make test`");
    let control = bed.path("codex/app-server-control");
    fs::create_dir_all(&control).unwrap();
    fs::create_dir(bed.path("runtime")).unwrap();
    let sockets = ["plain", "runtime/bus", "runtime/agent"].map(|name| bed.path(name));
    let listeners = sockets.each_ref().map(|path| UnixListener::bind(path).unwrap());
    let program = format!(
        r#"
import os, socket
def tries(name, path):
    try:
        socket.socket(socket.AF_UNIX).connect(path)
        print(name, "out")
    except OSError:
        print(name, "in")
tries("plain", {plain:?})
tries("bus", {bus:?})
tries("agent", {agent:?})
open({begun:?}, "w").close()
open({gate:?}).read()
tries("late", {late:?})
own = socket.socket(socket.AF_UNIX)
own.bind({late:?} + ".own")
own.listen()
tries("own", {late:?} + ".own")
print("uncovered", os.system("umount {plain} 2> /dev/null") == 0)
"#,
        plain = text(&sockets[0]),
        bus = text(&sockets[1]),
        agent = text(&sockets[2]),
        begun = text(&bed.path("begun")),
        gate = text(&bed.path("gate")),
        late = text(&control.join("s")),
    );
    bed.gate("gate");
    let file = bed.write("tries.py", &program);
    let script = format!("{python} {} > tried", text(&file));
    let mut command = bed.outlast(&["run", "--run", "r", "--confine-net", "--allow-net"]);
    command.arg(&sockets[2]).args(["--", "sh", "-c", &script]);
    command.env("CODEX_HOME", bed.path("codex")).env("XDG_RUNTIME_DIR", bed.path("runtime"));
    let running = bed.start(command);
    bed.until_file("begun");
    let late = UnixListener::bind(control.join("s")).unwrap();
    fs::write(bed.path("gate"), "go\n").unwrap();
    running.done().code(0);
    let wanted = "plain in\nbus in\nagent out\nlate in\nown out\nuncovered False\n";
    assert_eq!(bed.text("work/tried"), wanted);
    drop((listeners, late));
}

#[test]
fn a_host_has_to_be_allowed_and_public() {
    let bed = Bed::new();
    let script = "get() { curl -sS -o /dev/null -w '%{http_connect}\n' --noproxy '' \"$@\" >> got 2>> said; }
        get https://example.com/
        get https://169.254.169.254/
        get https://localhost:8443/
        get https://169.254.169.254:444/
        get http://example.com/ --proxytunnel -x $HTTPS_PROXY
        true";
    let flags = ["--confine-net", "--allow-net", "localhost:8443", "--allow-net", "169.254.169.254:444"];
    let done = bed.does(&[&["run", "--run", "r"][..], &flags, &["--", "sh", "-c", script]].concat());
    done.code(0).tells(&[
        "net_refused",
        "example.com:443 is not a host that this run may reach",
        "--allow-net",
    ]);
    assert_eq!(bed.text("work/got"), "403\n403\n502\n502\n403\n", "{}", bed.text("work/said"));
}

#[test]
fn a_confined_run_goes_on_confined_after_kill_9() {
    let bed = Bed::new();
    bed.gate("gate");
    let script = format!(
        "{ASK}; ls /sys/class/net > net.$OUTLAST_ATTEMPT; cat /proc/net/dev > dev.$OUTLAST_ATTEMPT; touch ../at.$OUTLAST_ATTEMPT; test $OUTLAST_ATTEMPT = 2 || cat ../gate"
    );
    let mut command = bed.outlast(&["run", "--run", "r", "--confine-net", "--", "sh", "-c"]);
    command.arg(&script);
    let mut first = bed.start(command);
    bed.until_file("at.1");
    first.kill();
    bed.does(&["resume", "r"]).code(0);
    for attempt in 1..=2 {
        let devices = bed.text(&format!("work/dev.{attempt}"));
        let names: Vec<_> =
            devices.lines().skip(2).filter_map(|line| line.split_once(':')).map(|l| l.0.trim()).collect();
        assert_eq!(names, ["lo"], "attempt {attempt}");
    }
    assert_eq!(bed.paid(), 1, "the answer is replayed");
}
