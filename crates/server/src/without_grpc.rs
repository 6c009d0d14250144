//! gRPC of a program that was built without it: nothing is served.

use std::{io, sync::Arc};

use tokio::net::TcpListener;

pub use crate::state::Admission;
use crate::state::StateDesk;

/// Serves nothing. Errors: always.
pub async fn serve(
    _desk: Arc<StateDesk>,
    _listener: TcpListener,
    _admission: Admission,
    _shutdown: impl Future<Output = ()>,
) -> io::Result<()> {
    Err(io::Error::other("this program is a demonstration's, which was built without gRPC: see `make help`"))
}
