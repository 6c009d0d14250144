//! Probes of a server whose database lost commits.

use outlast_core::store::Loss;

use crate::{client::Ask, failing::Failing, rig::Rig};

#[tokio::test]
async fn a_server_whose_database_lost_commits_is_ready_and_says_so() {
    let (rig, store) = Rig::on(Failing::new).await;
    let server = rig.serve().await;
    let asks = async |path: &str| Ask::new("GET", path).to(&server).await.text().to_owned();
    assert_eq!(asks("/readyz").await, "ready\n");
    assert!(asks("/metrics").await.contains("\noutlast_lost_commits_total 0\n"));
    let cause = "a standby was promoted".to_owned();
    let ages_us = (3_000_000, 1_000_000);
    store.lose(Loss { commits: 7, synced: 2, is_least: false, is_unregistered: false, ages_us, cause });
    let told = "ready\nthe database lost 7 commits that it had acknowledged to this process, 2 of them as synced, made \
                3.0 to 1.0 s ago: a standby was promoted\n";
    assert_eq!(asks("/readyz").await, told);
    assert!(asks("/metrics").await.contains("\noutlast_lost_commits_total 7\n"));
}
