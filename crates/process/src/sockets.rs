//! Sockets as the kernel lists them: Unix sockets of processes outside a confinement, since a network namespace does not
//! part those who name one file, and the users who own the other ends of TCP connections.

use std::{
    collections::BTreeSet,
    ffi::OsString,
    fs, io,
    net::{IpAddr, SocketAddr},
    os::unix::{ffi::OsStringExt as _, fs::FileTypeExt as _},
    path::{Path, PathBuf},
};

/// Directory below which the machine's services make their sockets, and how far below it they are searched for.
const SERVICES: (&str, usize) = ("/run", 6);

/// Returns the sockets at which a process outside may be reached now, as far as that can be told: those that the kernel
/// lists for this network, mount points (a container gets its host's sockets so) and files of services.
///
/// Errors: the kernel lists none.
pub fn outside() -> io::Result<BTreeSet<PathBuf>> {
    let mounts = fs::read("/proc/self/mountinfo")?;
    let mut found: BTreeSet<PathBuf> = bound()?.into_iter().chain(mount_points(&mounts)).collect();
    below(Path::new(SERVICES.0), SERVICES.1, &mut found);
    Ok(found)
}

/// Returns the paths that sockets of this network are bound to. A path may be gone, or another mount namespace's.
pub fn bound() -> io::Result<Vec<PathBuf>> {
    Ok(paths_in(&fs::read("/proc/net/unix")?))
}

/// Returns whether a socket's file is at `path`, as far as this process may look.
pub fn is_socket(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|file| file.file_type().is_socket())
}

/// Returns the number of the user who owns the `peer` end of a TCP connection to `here`, an address of this machine; `None`
/// if no socket of this network is that end.
///
/// Errors: the kernel lists none.
pub fn tcp_owner(peer: SocketAddr, here: SocketAddr) -> io::Result<Option<u32>> {
    // Who connects to an IPv4 address may do so from a socket of IPv6, as gRPC's clients do.
    let mapped = |address: SocketAddr| match address.ip() {
        IpAddr::V4(ip) => SocketAddr::from((ip.to_ipv6_mapped(), address.port())),
        IpAddr::V6(_) => address,
    };
    let of_v6 =
        || owner_in(&fs::read_to_string("/proc/net/tcp6").unwrap_or_default(), mapped(peer), mapped(here));
    Ok(owner_in(&fs::read_to_string("/proc/net/tcp")?, peer, here).or_else(of_v6))
}

/// Reads the owner of the socket from `local` to `remote` in the kernel's table of TCP sockets.
fn owner_in(table: &str, local: SocketAddr, remote: SocketAddr) -> Option<u32> {
    let (local, remote) = (as_listed(local), as_listed(remote));
    table.lines().find_map(|line| {
        let mut columns = line.split_ascii_whitespace().skip(1);
        let is_it = columns.next()? == local && columns.next()? == remote;
        // Between them: state, queues, timer, retransmissions.
        if is_it { columns.nth(4)?.parse().ok() } else { None }
    })
}

/// Returns an address as the kernel's tables have it: 32-bit words of the machine's own byte order.
fn as_listed(address: SocketAddr) -> String {
    let bytes = match address.ip() {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    };
    let words = bytes.chunks_exact(4).map(|word| u32::from_ne_bytes(word.try_into().unwrap_or_default()));
    let words: String = words.map(|word| format!("{word:08X}")).collect();
    format!("{words}:{:04X}", address.port())
}

/// Reads the absolute paths in the kernel's table of sockets. Abstract names begin with `@`.
fn paths_in(table: &[u8]) -> Vec<PathBuf> {
    let path = |line: &[u8]| {
        let at = line.iter().position(|b| *b == b'/')?;
        Some(PathBuf::from(OsString::from_vec(line.get(at..)?.to_owned())))
    };
    table.split(|b| *b == b'\n').filter(|line| !line.contains(&b'@')).filter_map(path).collect()
}

/// Reads the mount points in a table of mounts, where a space is `\040`.
fn mount_points(table: &[u8]) -> Vec<PathBuf> {
    let point = |line: &[u8]| {
        let mut escaped = line.split(|b| *b == b' ').nth(4)?.iter().copied().peekable();
        let mut path = Vec::new();
        while let Some(byte) = escaped.next() {
            let digits: Vec<u8> = match byte {
                b'\\' => escaped.by_ref().take(3).collect(),
                byte => vec![byte],
            };
            path.push(match byte {
                b'\\' => u8::from_str_radix(str::from_utf8(&digits).ok()?, 8).ok()?,
                byte => byte,
            });
        }
        Some(PathBuf::from(OsString::from_vec(path)))
    };
    table.split(|b| *b == b'\n').filter_map(point).collect()
}

/// Adds the sockets below a directory, without following links.
fn below(directory: &Path, depth: usize, found: &mut BTreeSet<PathBuf>) {
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        match entry.file_type() {
            Ok(kind) if kind.is_dir() && depth > 0 => below(&entry.path(), depth - 1, found),
            Ok(kind) if kind.is_socket() => drop(found.insert(entry.path())),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        net::{TcpListener, TcpStream},
        os::unix::net::UnixListener,
    };

    use super::*;

    #[test]
    fn sockets_are_read_off_the_kernels_tables() {
        let table = b"Num       RefCount Protocol Flags    Type St Inode Path\n\
            0000: 00000002 00000000 00010000 0001 01 21 /run/user/1000/a bus\n\
            0000: 00000002 00000000 00010000 0001 01 22 @/tmp/.X11-unix/X0\n\
            0000: 00000002 00000000 00000000 0002 01 23 relative.sock\n\
            0000: 00000003 00000000 00000000 0001 03 24\n\
            0000: 00000002 00000000 00000000 0002 01 25 /dev/log\n";
        assert_eq!(paths_in(table), ["/run/user/1000/a bus", "/dev/log"].map(PathBuf::from));
        let mounts = b"22 1 0:20 / / rw,relatime - ext4 /dev/vda rw\n\
            23 22 0:21 /x /run/docker\\040sock rw shared:1 - tmpfs tmpfs rw\n";
        assert_eq!(mount_points(mounts), ["/", "/run/docker sock"].map(PathBuf::from));
    }

    #[test]
    fn the_owner_of_a_connections_other_end_is_told_by_the_kernel() {
        for (address, by_v6) in [("127.0.0.1:0", false), ("127.0.0.1:0", true), ("[::1]:0", true)] {
            let Ok(listener) = TcpListener::bind(address) else { continue };
            let here = listener.local_addr().unwrap();
            let to = match here.ip() {
                IpAddr::V4(ip) if by_v6 => SocketAddr::from((ip.to_ipv6_mapped(), here.port())),
                _ => here,
            };
            let Ok(_client) = TcpStream::connect(to) else { continue };
            let (_server, peer) = listener.accept().unwrap();
            let us = rustix::process::geteuid().as_raw();
            assert_eq!(tcp_owner(peer, here).unwrap(), Some(us));
            assert_eq!(tcp_owner(here, here).unwrap(), None, "nobody connected from {here}");
        }
        let table = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n\
            0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000     7        0 1 1 0 100 0 0 10 0\n\
            1: 0100007F:C350 0100007F:1F90 01 00000000:00000000 00:00000000 00000000  1000        0 2 1 0 20 4 30 10 -1\n";
        let at = |port| SocketAddr::from(([127, 0, 0, 1], port));
        if cfg!(target_endian = "little") {
            assert_eq!(owner_in(table, at(50_000), at(8080)), Some(1000));
        }
        assert_eq!(owner_in(table, at(50_001), at(8080)), None);
    }

    #[test]
    fn a_socket_is_found_by_the_kernel_and_by_its_file() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("below").join("it");
        fs::create_dir(path.parent().unwrap()).unwrap();
        let _listener = UnixListener::bind(&path).unwrap();
        assert!(outside().unwrap().contains(&path) && is_socket(&path));
        let mut found = BTreeSet::new();
        below(home.path(), 1, &mut found);
        assert_eq!(found, BTreeSet::from([path]));
        below(home.path(), 0, &mut found);
        assert_eq!(found.len(), 1);
    }
}
