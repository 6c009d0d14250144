//! gRPC: the service of the published Statehouse client, and the health service.
//!
//! Plain HTTP/2 without TLS. On loopback, or with a token as `authorization: Bearer`.

mod replay;
mod service;

/// Messages and service of `proto/statehouse.proto`, as `build.rs` makes them.
#[allow(clippy::all, clippy::pedantic, clippy::unwrap_used, missing_docs)]
mod generated {
    tonic::include_proto!("statehouse.v1");
}

use std::sync::Arc;

use outlast_core::words::Class;
use tokio::net::TcpListener;
use tonic::{
    Code, Request, Status,
    metadata::MetadataValue,
    service::interceptor::InterceptedService,
    transport::{
        self, Server,
        server::{TcpConnectInfo, TcpIncoming},
    },
};

pub use generated::*;

use self::{service::Statehouse, statehouse_service_server::StatehouseServiceServer};
pub use crate::state::Admission;
use crate::{
    state::{Error, StateDesk},
    wire::access::NotLetIn,
};

/// Largest reply in bytes: gRPC's default, which the published client accepts. The client would refuse a longer reply
/// with a less helpful error.
pub const MAX_REPLY: usize = 4 << 20;

/// Serves gRPC until `shutdown` resolves.
pub async fn serve(
    desk: Arc<StateDesk>,
    listener: TcpListener,
    admission: Admission,
    shutdown: impl Future<Output = ()>,
) -> Result<(), transport::Error> {
    let expiring = tokio::spawn(desk.clone().keep_expiring());
    let (health, health_service) = tonic_health::server::health_reporter();
    health.set_serving::<StatehouseServiceServer<Statehouse>>().await;
    let service = StatehouseServiceServer::new(Statehouse::new(desk));
    let admission = Arc::new(admission);
    let guarded = InterceptedService::new(service, move |request| let_in(request, &admission));
    // A small reply must not wait for an acknowledgement.
    let incoming = TcpIncoming::from(listener).with_nodelay(Some(true));
    let served = Server::builder()
        .add_service(health_service)
        .add_service(guarded)
        .serve_with_incoming_shutdown(incoming, shutdown)
        .await;
    expiring.abort();
    served
}

fn let_in(request: Request<()>, admission: &Admission) -> Result<Request<()>, Status> {
    let shown = request.metadata().get("authorization").and_then(|v| v.to_str().ok());
    let shown = shown.map(crate::wire::credentials::bare).unwrap_or_default();
    let is_in = match admission {
        Admission::Everybody => true,
        Admission::ApiToken(tokens) => tokens.find(&shown).is_some(),
        Admission::By(lets_in) => {
            lets_in(&shown, request.extensions().get().and_then(TcpConnectInfo::remote_addr))
        }
    };
    if is_in { Ok(request) } else { Err(status(Error::NotLetIn(NotLetIn::NoToken))) }
}

/// Returns the gRPC status of an error. The metadata `outlast-code` has the stable code.
fn status(error: Error) -> Status {
    let text = match error.hint() {
        Some(hint) => format!("{error} (hint: {hint})"),
        None => error.to_string(),
    };
    let mut status = Status::new(code(error.class()), text);
    status.metadata_mut().insert("outlast-code", MetadataValue::from_static(error.code()));
    status
}

/// Returns the gRPC status of a class.
pub fn code(class: Class) -> Code {
    match class {
        Class::Invalid => Code::InvalidArgument,
        Class::NoCredential => Code::Unauthenticated,
        Class::Forbidden => Code::PermissionDenied,
        Class::NotFound => Code::NotFound,
        Class::Conflict => Code::Aborted,
        Class::Exists => Code::AlreadyExists,
        Class::Gone => Code::FailedPrecondition,
        Class::TooLarge | Class::TooMany => Code::ResourceExhausted,
        Class::Unavailable => Code::Unavailable,
        Class::Unknown => Code::Unknown,
        Class::Internal => Code::Internal,
    }
}
