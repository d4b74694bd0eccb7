//! A server that says what it is told to, byte for byte, and remembers what it was asked.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// What the server does with a request.
pub(crate) enum Behaviour {
    /// Answers with these bytes and closes.
    Answer(String),
    /// Reads the request and closes without a word.
    Close,
    /// Reads the request and says nothing for as long as the caller stays.
    Hang,
}

pub(crate) struct Fake {
    pub(crate) address: SocketAddr,
    requests: Arc<Mutex<Vec<String>>>,
}

impl Fake {
    /// Answers the first request as the first behaviour says, and so on; further ones are closed.
    pub(crate) async fn start(behaviours: Vec<Behaviour>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let requests = Arc::new(Mutex::new(Vec::new()));
        let seen = requests.clone();
        tokio::spawn(async move {
            let mut behaviours = behaviours.into_iter();
            while let Ok((stream, _)) = listener.accept().await {
                let behaviour = behaviours.next().unwrap_or(Behaviour::Close);
                tokio::spawn(serve(stream, behaviour, seen.clone()));
            }
        });
        Self { address, requests }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// The requests so far: head in lower case up to the blank line, then the body.
    pub(crate) fn requests(&self) -> Vec<String> {
        self.requests.lock().unwrap().clone()
    }
}

/// An answer with headers and a body.
pub(crate) fn answer(status: &str, headers: &[&str], body: &str) -> Behaviour {
    let mut text = format!("HTTP/1.1 {status}\r\ncontent-length: {}\r\nconnection: close\r\n", body.len());
    for header in headers {
        text.push_str(header);
        text.push_str("\r\n");
    }
    Behaviour::Answer(format!("{text}\r\n{body}"))
}

async fn serve(mut stream: TcpStream, behaviour: Behaviour, seen: Arc<Mutex<Vec<String>>>) {
    let mut bytes = Vec::new();
    let head = loop {
        if let Some(end) = bytes.windows(4).position(|window| window == b"\r\n\r\n") {
            break end + 4;
        }
        if stream.read_buf(&mut bytes).await.unwrap_or(0) == 0 {
            return;
        }
    };
    let text = String::from_utf8_lossy(&bytes[..head]).to_ascii_lowercase();
    let length = text.lines().find_map(|line| line.strip_prefix("content-length: ")?.parse::<usize>().ok());
    while bytes.len() < head + length.unwrap_or(0) {
        if stream.read_buf(&mut bytes).await.unwrap_or(0) == 0 {
            return;
        }
    }
    seen.lock().unwrap().push(format!("{text}{}", String::from_utf8_lossy(&bytes[head..])));
    match behaviour {
        Behaviour::Answer(text) => {
            // The caller may have heard enough and left: that is its right.
            let _ = stream.write_all(text.as_bytes()).await;
        }
        Behaviour::Close => {}
        Behaviour::Hang => {
            let _ = stream.read_buf(&mut bytes).await;
        }
    }
}
