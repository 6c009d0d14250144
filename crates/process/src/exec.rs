//! A new process, from its fork to the program that it becomes.
//!
//! Home-made because the standard library cannot begin a process inside a control group. A process that joins one later
//! makes the kernel wait until every processor has been seen outside of its critical sections: 10 ms and more at each
//! start.

use std::{
    collections::BTreeMap,
    ffi::{CString, OsStr, OsString, c_char},
    fs::File,
    io::{self, Read as _},
    mem,
    os::{
        fd::{AsRawFd as _, BorrowedFd, OwnedFd},
        unix::ffi::OsStrExt as _,
    },
    path::Path,
    ptr,
};

use rustix::{
    fs::{Mode, OFlags},
    pipe::PipeFlags,
};

/// Program for a new process, with all memory that the process needs before it is that program: between fork and exec
/// it may not allocate.
pub struct Image {
    argv: Vec<CString>,
    env: Vec<CString>,
    cwd: CString,
    /// Standard input, output and error; `None`: this process's own.
    stdio: [Option<OwnedFd>; 3],
}

impl Image {
    /// Prepares a program that is looked up in the PATH of its environment `env`, and runs in `cwd`. Errors: a zero byte
    /// in an argument, a variable or the directory.
    pub fn new(
        argv: &[OsString],
        env: &BTreeMap<OsString, OsString>,
        cwd: &Path,
        stdio: [Option<OwnedFd>; 3],
    ) -> io::Result<Image> {
        let text = |text: &OsStr| Ok::<_, io::Error>(CString::new(text.as_bytes())?);
        let variable =
            |(name, value): (&OsString, &OsString)| text(&[name.as_os_str(), value].join(OsStr::new("=")));
        let above = |ours: Option<OwnedFd>| ours.map(above_standard).transpose();
        let [stdin, stdout, stderr] = stdio;
        Ok(Image {
            argv: argv.iter().map(|word| text(word)).collect::<io::Result<_>>()?,
            env: env.iter().map(variable).collect::<io::Result<_>>()?,
            cwd: text(cwd.as_os_str())?,
            stdio: [above(stdin)?, above(stdout)?, above(stderr)?],
        })
    }

    /// Makes a new process, in the control group whose directory is open as `group`, calls `prepare` there and runs the
    /// program. Returns the process's pid once the program runs.
    ///
    /// Errors: no process can be made; those of `prepare`; the program does not start. There is no process then.
    ///
    /// # Safety
    ///
    /// `prepare` may only make async-signal-safe calls: it must neither allocate nor lock.
    pub unsafe fn start(
        &self,
        group: Option<BorrowedFd<'_>>,
        prepare: impl Fn() -> io::Result<()>,
    ) -> io::Result<u32> {
        let [argv, env] = [&self.argv, &self.env].map(|texts| {
            let texts = texts.iter().map(|text| text.as_ptr());
            texts.chain([ptr::null()]).collect::<Vec<*const c_char>>()
        });
        let (failure, report) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?;
        let report = above_standard(report)?;
        let (pid, is_inside) = fork_into(group)?;
        if pid == 0 {
            let to_join = group.filter(|_| !is_inside);
            let error = self.become_program(&argv, &env, to_join, &prepare);
            let errno = error.raw_os_error().unwrap_or(libc::EINVAL);
            let _ = rustix::io::write(&report, &errno.to_ne_bytes());
            // SAFETY: ends the process, and runs nothing of what it has in common with its parent.
            unsafe { libc::_exit(1) }
        }
        drop(report);
        let mut errno = [0; size_of::<i32>()];
        match File::from(failure).read_exact(&mut errno) {
            Ok(()) => {
                // SAFETY: a child of ours that nobody else knows; it ends.
                unsafe { libc::waitpid(pid, ptr::null_mut(), 0) };
                Err(io::Error::from_raw_os_error(i32::from_ne_bytes(errno)))
            }
            // The pipe was closed: the program has begun. A child that was killed before is reaped as any other.
            Err(_) => Ok(pid.unsigned_abs()),
        }
    }

    /// Makes this process, a fork, the program. Returns only if that fails. Allocates nothing.
    fn become_program(
        &self,
        argv: &[*const c_char],
        env: &[*const c_char],
        to_join: Option<BorrowedFd<'_>>,
        prepare: &impl Fn() -> io::Result<()>,
    ) -> io::Error {
        let prepared = || {
            if let Some(group) = to_join {
                let flags = OFlags::WRONLY | OFlags::CLOEXEC;
                let procs = rustix::fs::openat(group, c"cgroup.procs", flags, Mode::empty())?;
                // "0" is this process.
                rustix::io::write(procs, b"0")?;
            }
            for (ours, standard) in self.stdio.iter().zip(0..) {
                // SAFETY: `ours` is open and above the standard streams, so that no other of ours is closed here.
                if let Some(ours) = ours
                    && unsafe { libc::dup2(ours.as_raw_fd(), standard) } < 0
                {
                    return Err(io::Error::last_os_error());
                }
            }
            rustix::process::chdir(self.cwd.as_c_str())?;
            prepare()
        };
        if let Err(e) = prepared() {
            return e;
        }
        // SAFETY: plain system calls. The runtime of Rust ignores SIGPIPE, which would pass on to the program; `environ`
        // is this process's own, and `execvp` takes its PATH from there. Both arrays end in a null pointer.
        unsafe {
            let mut none = mem::zeroed();
            libc::sigemptyset(&raw mut none);
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const none, ptr::null_mut());
            libc::signal(libc::SIGPIPE, libc::SIG_DFL);
            environ = env.as_ptr();
            libc::execvp(argv[0], argv.as_ptr());
        }
        io::Error::last_os_error()
    }
}

/// Returns a descriptor above the standard streams, which the child replaces. A program that was started with closed
/// streams gets such numbers for its own files, unless its runtime is that of Rust.
fn above_standard(fd: OwnedFd) -> io::Result<OwnedFd> {
    if fd.as_raw_fd() > libc::STDERR_FILENO { Ok(fd) } else { fd.try_clone() }
}

unsafe extern "C" {
    static mut environ: *const *const c_char;
}

/// Forks into a control group. Returns the child's pid, 0 in the child, and whether the child is in the group already:
/// kernels before 5.7, and filters of system calls that know no `clone3`, make a plain fork.
fn fork_into(group: Option<BorrowedFd<'_>>) -> io::Result<(i32, bool)> {
    const CLONE_INTO_CGROUP: u64 = 0x2_0000_0000;
    if let Some(group) = group {
        // SAFETY: plain data, for which zeros are the defaults.
        let mut how: libc::clone_args = unsafe { mem::zeroed() };
        how.flags = CLONE_INTO_CGROUP;
        how.exit_signal = u64::from(libc::SIGCHLD.unsigned_abs());
        how.cgroup = u64::from(group.as_raw_fd().unsigned_abs());
        // SAFETY: without CLONE_VM the child has a copy of all memory, as after a fork.
        let pid = unsafe { libc::syscall(libc::SYS_clone3, &raw const how, size_of_val(&how)) };
        if let Ok(pid @ 0..) = i32::try_from(pid) {
            return Ok((pid, true));
        }
    }
    // SAFETY: the child makes only async-signal-safe calls: see `Image::start`.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        pid => Ok((pid, false)),
    }
}
