//! Names of service tiers in requests and answers.

use outlast_core::words::usage::ServiceTier;

/// Parses the name of a service tier. `Some(None)`: the provider decides which tier it bills; `None`: the name has no
/// price column.
pub(super) fn read_tier(tier: &str) -> Option<Option<ServiceTier>> {
    match tier {
        "auto" => Some(None),
        // Scale is capacity bought beforehand: its tokens have no price of their own.
        "default" | "standard" | "scale" => Some(Some(ServiceTier::Standard)),
        "flex" => Some(Some(ServiceTier::Flex)),
        // A request for `fast` is billed as priority.
        "priority" | "fast" => Some(Some(ServiceTier::Priority)),
        "batch" => Some(Some(ServiceTier::Batch)),
        _ => None,
    }
}
