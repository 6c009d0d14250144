//! Processes under load: the fake provider, nginx, outlast.

use std::{
    fs,
    net::{TcpListener, TcpStream},
    path::Path,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use rustix::process::Pid;

/// A server process that is killed when the value is dropped.
pub struct Server {
    child: Child,
    pub address: String,
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Server {
    /// Wraps a process that listens on no port.
    pub fn of(child: Child) -> Server {
        Server { child, address: String::new() }
    }

    /// Returns the resident memory in KiB, private and shared.
    pub fn rss_kib(&self) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        line.and_then(|l| l.split_whitespace().next()?.parse().ok()).unwrap_or(0)
    }

    /// Returns the CPU time used so far, user and system.
    pub fn cpu(&self) -> Duration {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.child.id())).unwrap_or_default();
        let fields: Vec<&str> = stat.rsplit(") ").next().unwrap_or("").split(' ').collect();
        let ticks = |i: usize| fields.get(i).and_then(|f| f.parse::<u64>().ok()).unwrap_or(0);
        let per_second = rustix::param::clock_ticks_per_second();
        Duration::from_secs_f64((ticks(11) + ticks(12)) as f64 / per_second as f64)
    }
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").and_then(|l| l.local_addr()).expect("a free port").port()
}

fn up(child: Child, port: u16) -> Server {
    up_within(child, port, Duration::from_secs(10))
}

fn up_within(child: Child, port: u16, longest: Duration) -> Server {
    let address = format!("127.0.0.1:{port}");
    let until = Instant::now() + longest;
    while TcpStream::connect(&address).is_err() {
        assert!(Instant::now() < until, "{address} does not come up");
        std::thread::sleep(Duration::from_millis(10));
    }
    Server { child, address }
}

/// Returns the `outlast` command of the same build, beside this program.
pub fn outlast() -> Command {
    let me = std::env::current_exe().expect("this program");
    let mut command = Command::new(me.with_file_name("outlast"));
    command
        .env_clear()
        .env("HOME", "/nonexistent")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    if let Some(n) = std::env::var_os("TOKIO_WORKER_THREADS") {
        command.env("TOKIO_WORKER_THREADS", n);
    }
    command
}

pub fn mock() -> Server {
    let port = free_port();
    let child = outlast().args(["mock", "--listen", &format!("127.0.0.1:{port}")]).spawn();
    up(child.expect("outlast mock (build it first: make bench does)"), port)
}

/// Serves the store at `store`, a path or a URL.
pub fn serve(upstream: &str, store: &str) -> Server {
    let port = free_port();
    let child = outlast()
        .args(["serve", "--listen", &format!("127.0.0.1:{port}"), "--store", store])
        .args(["--openai-base-url", &format!("http://{upstream}/v1")])
        .args(["--default-usd", "1000000", "--default-loops", "none", "--default-wall", "none"])
        .spawn();
    up(child.expect("outlast serve"), port)
}

/// Serves the state over gRPC. The server's address is that of gRPC.
pub fn serve_state(store: &Path) -> Server {
    let port = free_port();
    let child = outlast()
        .args(["serve", "--listen", "127.0.0.1:0", "--grpc", &format!("127.0.0.1:{port}")])
        .args(["--store", &store.to_string_lossy()])
        .spawn();
    up(child.expect("outlast serve"), port)
}

/// Starts nginx with `proxy_pass` and upstream keep-alive, as one process: a worker would outlive its killed master, and its
/// processor time would be another process's. `None` if it is not installed.
pub fn nginx(upstream: &str, dir: &Path) -> Option<Server> {
    let port = free_port();
    let conf = dir.join("nginx.conf");
    let text = format!(
        "daemon off; master_process off; pid {0}/nginx.pid; error_log {0}/nginx.err;
         events {{ worker_connections 1024; }}
         http {{
           access_log off; client_body_temp_path {0}/b; proxy_temp_path {0}/p; fastcgi_temp_path {0}/f;
           uwsgi_temp_path {0}/u; scgi_temp_path {0}/s; keepalive_requests 1000000;
           upstream provider {{ server {upstream}; keepalive 128; keepalive_requests 1000000; }}
           server {{ listen 127.0.0.1:{port}; location / {{
             proxy_pass http://provider; proxy_http_version 1.1; proxy_set_header Connection \"\"; proxy_buffering off;
           }} }}
         }}",
        dir.display()
    );
    fs::write(&conf, text).expect("nginx's configuration");
    let child = Command::new("nginx")
        .arg("-c")
        .arg(fs::canonicalize(&conf).expect("its path"))
        .arg("-p")
        .arg(dir)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .ok()?;
    Some(up(child, port))
}

/// Starts LiteLLM's proxy as `pip install` leaves it: one worker, no database. `None` if it is not installed
/// (`make bench` installs it).
pub fn litellm(upstream: &str, dir: &Path) -> Option<Server> {
    let program = fs::canonicalize(".venv-bench/bin/litellm").ok()?;
    let port = free_port();
    let conf = dir.join("litellm.yaml");
    let text = format!(
        "model_list:
  - model_name: gpt-4o-mini
    litellm_params:
      model: openai/gpt-4o-mini
      api_base: http://{upstream}/v1
      api_key: k
litellm_settings:
  telemetry: false
"
    );
    fs::write(&conf, text).expect("LiteLLM's configuration");
    let child = Command::new(program)
        .args(["--host", "127.0.0.1", "--port", &port.to_string(), "--num_workers", "1", "--config"])
        .arg(conf)
        .env("LITELLM_LOCAL_MODEL_COST_MAP", "True")
        .env("LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY", "true")
        .current_dir(dir)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .ok()?;
    Some(up_within(child, port, Duration::from_secs(120)))
}

/// Makes this process the parent of what its servers leave behind.
pub fn adopt_orphans() {
    // A kernel that cannot do so leaves them to init, and nothing is found.
    let _ = rustix::process::set_child_subreaper(Some(rustix::process::getpid()));
}

/// Ends the processes that servers have left behind, and are there after `patience` still. Returns their names.
pub fn end_orphans(patience: Duration) -> Vec<String> {
    let until = Instant::now() + patience;
    // What a killed supervisor started is ended by its guardian, a moment later.
    while !children().is_empty() && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(50));
    }
    let left = children();
    for (pid, _) in &left {
        let _ = rustix::process::kill_process(*pid, rustix::process::Signal::KILL);
    }
    left.into_iter().map(|(_, name)| name).collect()
}

/// Returns the living children of this process, with their names.
fn children() -> Vec<(Pid, String)> {
    let me = std::process::id();
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let stat = fs::read_to_string(entry.path().join("stat")).unwrap_or_default();
        // pid (name) state parent …; a name may hold any character.
        let Some((head, rest)) = stat.rsplit_once(") ") else { continue };
        let Some((pid, name)) = head.split_once(" (") else { continue };
        let mut fields = rest.split(' ');
        let (state, parent) = (fields.next(), fields.next().and_then(|parent| parent.parse::<u32>().ok()));
        let pid = pid.parse().ok().and_then(Pid::from_raw);
        if parent == Some(me) && state != Some("Z") {
            found.extend(pid.map(|pid| (pid, name.to_owned())));
        }
    }
    found
}
