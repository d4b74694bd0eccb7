//! Behind a pooler that hands one session of Postgres to many: it refuses settings for a session, forgets them, or runs
//! what was prepared on another session.

use std::str::FromStr;
use std::sync::{Arc, Mutex};

use sqlx::postgres::PgConnectOptions;
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};

use super::*;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Pooler {
    /// Passes everything on.
    Passes,
    /// Refuses a session that comes with settings.
    Refuses,
    /// Takes the settings of a session and does not pass them on.
    Forgets,
    /// What is prepared under a name of ours is not there when it is run.
    Swaps,
}

/// What came by.
#[derive(Debug, Default, Clone, Copy)]
struct Came {
    refused: usize,
    /// Transactions that were limited for themselves.
    limited: usize,
    /// Statements that were prepared under a name of ours.
    prepared: usize,
}

impl Pooler {
    /// Stands before the database of a cell. Tells the URL to come by, and what came.
    async fn before(self, cell: &Cell) -> (String, Arc<Mutex<Came>>) {
        let direct = PgConnectOptions::from_str(cell.db.url()).unwrap();
        let upstream = format!("{}:{}", direct.get_host(), direct.get_port());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = cell.db.url().replacen(&upstream, &listener.local_addr().unwrap().to_string(), 1);
        assert_ne!(url, cell.db.url());
        let came = Arc::new(Mutex::new(Came::default()));
        let seen = came.clone();
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let (upstream, came) = (upstream.clone(), came.clone());
                // A client that goes away ends it.
                tokio::spawn(async move { drop(self.carry(client, upstream, &came).await) });
            }
        });
        (url, seen)
    }

    async fn carry(self, mut client: TcpStream, upstream: String, came: &Mutex<Came>) -> std::io::Result<()> {
        let mut server = TcpStream::connect(upstream).await?;
        loop {
            let length = client.read_u32().await?;
            let mut rest = vec![0; length as usize - 4];
            client.read_exact(&mut rest).await?;
            // A request for TLS comes first.
            if rest == 80_877_103_u32.to_be_bytes() {
                client.write_all(b"N").await?;
                continue;
            }
            let options = rest.windows(8).position(|name| name == b"options\0");
            match (self, options) {
                (Self::Refuses, Some(_)) => {
                    let fields = b"SFATAL\0VFATAL\0C08P01\0Munsupported startup parameter: options\0\0";
                    client.write_u8(b'E').await?;
                    client.write_u32(4 + fields.len() as u32).await?;
                    client.write_all(fields).await?;
                    came.lock().unwrap().refused += 1;
                    return Ok(());
                }
                (Self::Forgets, Some(at)) => {
                    let value = rest[at + 8..].iter().position(|byte| *byte == 0).unwrap();
                    rest.drain(at..at + 8 + value + 1);
                }
                _ => {}
            }
            server.write_u32(4 + rest.len() as u32).await?;
            server.write_all(&rest).await?;
            let ((asks, mut hears), (mut answers, tells)) = (client.into_split(), server.into_split());
            tokio::spawn(async move { drop(copy(&mut answers, &mut hears).await) });
            return self.pass_on(asks, tells, came).await;
        }
    }

    async fn pass_on(
        self,
        mut asks: OwnedReadHalf,
        mut tells: OwnedWriteHalf,
        came: &Mutex<Came>,
    ) -> std::io::Result<()> {
        loop {
            let kind = asks.read_u8().await?;
            let length = asks.read_u32().await?;
            let mut body = vec![0; length as usize - 4];
            asks.read_exact(&mut body).await?;
            let holds = |words: &str| body.windows(words.len()).any(|window| window == words.as_bytes());
            if kind == b'Q' && holds("set_config('lock_timeout'") {
                came.lock().unwrap().limited += 1;
            }
            if kind == b'Q' && body.starts_with(b"PREPARE tidegate_") {
                came.lock().unwrap().prepared += 1;
                if self == Self::Swaps {
                    body = b";\0".to_vec();
                }
            }
            let mut message = vec![kind];
            message.extend((4 + body.len() as u32).to_be_bytes());
            message.extend(body);
            tells.write_all(&message).await?;
        }
    }
}

/// A store that comes by a pooler, where only the doorbell has a way of its own.
fn store_at(cell: &Cell, url: String) -> Store {
    Store::open(StoreOptions { direct_url: Some(cell.db.url().to_owned()), ..StoreOptions::new(url) }).unwrap()
}

/// Tasks come in, run and end through this store, one at a time and many at once.
async fn works(cell: &Cell, store: &Store) {
    let admitter = Admitter::start(store, AdmitterOptions::default()).unwrap();
    let session = cell.session_of(store, 100, Duration::from_secs(15)).await;
    for many in [1, 60, 1] {
        let admit = |_| admitter.admit(cell.submission(), Instant::now());
        let admitted = futures_util::future::join_all((0..many).map(admit)).await;
        assert!(
            admitted
                .iter()
                .all(|answer| matches!(answer, Ok(Admission::Decided { decision, .. }) if !decision.status.is_final())),
            "{admitted:?}"
        );
        let claimed = session.turn(&[], many).await.unwrap().claimed;
        assert_eq!(claimed.len(), many);
        let reports: Vec<_> = claimed.iter().map(|task| report(task, Ending::Completed)).collect();
        let settled = session.turn(&reports, 1).await.unwrap().settled;
        assert!(settled.iter().all(|settled| matches!(settled, Settled::Ended(_))), "{settled:?}");
    }
    cell.assert_sound().await;
}

#[tokio::test]
async fn a_pooler_that_refuses_settings_of_a_session_is_asked_without() {
    let cell = Cell::new().await;
    let id = cell.add(cell.submission()).await;
    let (url, came) = Pooler::Refuses.before(&cell).await;
    let store = store_at(&cell, url);
    let tenant = tenant();
    let ask = || futures_util::future::join_all((0..20).map(|_| store.task(&tenant, id)));
    assert!(ask().await.into_iter().all(|task| task.unwrap().is_some()));
    let once = came.lock().unwrap().refused;
    assert!(once > 0, "no settings were asked for");
    // Those who came at once may all have been refused; nobody who comes later is.
    assert!(ask().await.into_iter().all(|task| task.unwrap().is_some()));
    assert_eq!(came.lock().unwrap().refused, once);
    cell.canceller.cancel(&tenant, id, None).await.unwrap();
    works(&cell, &store).await;
    let came = *came.lock().unwrap();
    assert!(came.limited > 0 && came.prepared == 0, "{came:?}");
}

/// Works by a pooler on a cell of its own, and tells whether transactions were limited for themselves, and whether
/// anything was prepared under a name of ours.
async fn limits_and_prepares(pooler: Pooler) -> (bool, bool) {
    let cell = Cell::new().await;
    let (url, came) = pooler.before(&cell).await;
    works(&cell, &store_at(&cell, url)).await;
    let came = came.lock().unwrap();
    (came.limited > 0, came.prepared > 0)
}

#[tokio::test]
async fn a_session_of_its_own_is_set_once_and_prepares_what_begins_a_transaction() {
    assert_eq!(limits_and_prepares(Pooler::Passes).await, (false, true));
}

#[tokio::test]
async fn a_pooler_that_forgets_settings_of_a_session_has_them_set_for_each_transaction() {
    assert_eq!(limits_and_prepares(Pooler::Forgets).await, (true, false));
}

#[tokio::test]
async fn where_what_was_prepared_is_gone_it_is_not_missed() {
    assert_eq!(limits_and_prepares(Pooler::Swaps).await, (true, true));
}
