//! Confinement to a network namespace whose only way out is a listener that another process serves.
//!
//! A socket belongs to the namespace in which it was made, whoever holds it. So the process inside makes a listener on
//! its loopback and hands it to its supervisor, which accepts from outside. Nothing else of the network is there.

use std::{
    io::{self, IoSlice, IoSliceMut},
    mem::MaybeUninit,
    net::{Ipv4Addr, TcpListener},
    os::{
        fd::{AsFd as _, AsRawFd as _},
        linux::net::SocketAddrExt as _,
        unix::net::{SocketAddr, UnixStream},
    },
};

use rustix::{
    net::{
        RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
        SendFlags, recvmsg, sendmsg,
    },
    thread::{self, UnshareFlags},
};

use crate::{
    confine::{Error, Ways, map_to_itself},
    sockets,
};

/// Leaves this machine's network, for good, for a namespace with nothing but a loopback of its own, and closes the `ways`
/// by which files lead to processes outside. Returns the listener at `port` there; 0 means any.
///
/// The process is in a user namespace, too, in which it has its own user alone: it cannot come back, also as root.
/// Call it where there is one thread. Errors: the kernel does not allow it; the process is of no use then.
pub fn leave(port: u16, ways: &Ways) -> Result<TcpListener, Error> {
    let failed = |step| move |e: rustix::io::Errno| Error::Kernel { step, source: e.into() };
    let wrote = |step| move |source| Error::Kernel { step, source };
    let (uid, gid) = (rustix::process::geteuid(), rustix::process::getegid());
    // The kernel lists the sockets of the network that is left.
    let outside = sockets::outside().map_err(wrote("list of sockets"))?;
    let enter = |more: UnshareFlags| {
        // SAFETY: no thread shares what is unshared, and no file descriptor is closed.
        unsafe { thread::unshare_unsafe(UnshareFlags::NEWUSER | UnshareFlags::NEWNS | more) }
            .map_err(failed("unshare"))?;
        map_to_itself(uid, gid)
    };
    enter(UnshareFlags::NEWNET)?;
    ways.close(&outside)?;
    loopback_up().map_err(wrote("loopback"))?;
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).map_err(wrote("listen"))?;
    // In a namespace below, what was mounted above cannot be taken away, also by who is root there.
    enter(UnshareFlags::empty())?;
    thread::set_no_new_privs(true).map_err(failed("no_new_privs"))?;
    Ok(listener)
}

/// Brings the interface `lo` of this network namespace up.
fn loopback_up() -> io::Result<()> {
    let socket = rustix::net::socket(rustix::net::AddressFamily::INET, rustix::net::SocketType::DGRAM, None)?;
    // SAFETY: a structure of integers and bytes, for which zeros are valid.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(b"lo") {
        *to = *from as libc::c_char;
    }
    request.ifr_ifru.ifru_flags = (libc::IFF_UP | libc::IFF_RUNNING) as libc::c_short;
    // SAFETY: the kernel reads the structure, which outlives the call.
    match unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS, &request) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Connects to the process that is to serve a listener, by an abstract name. To be done before [`leave`].
pub fn server(name: &str) -> io::Result<UnixStream> {
    UnixStream::connect_addr(&SocketAddr::from_abstract_name(name)?)
}

/// Hands a listener over.
pub fn hand_over(listener: TcpListener, to: &UnixStream) -> io::Result<()> {
    let all = [listener.as_fd()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    ancillary.push(SendAncillaryMessage::ScmRights(&all));
    sendmsg(to, &[IoSlice::new(b"l")], &mut ancillary, SendFlags::empty())?;
    Ok(())
}

/// Receives a listener. Errors: the peer sent none.
pub fn receive(from: &UnixStream) -> io::Result<TcpListener> {
    let mut byte = [0];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    recvmsg(from, &mut [IoSliceMut::new(&mut byte)], &mut ancillary, RecvFlags::CMSG_CLOEXEC)?;
    let descriptors = ancillary.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut all) => all.next(),
        _ => None,
    });
    descriptors.map(TcpListener::from).ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
}
