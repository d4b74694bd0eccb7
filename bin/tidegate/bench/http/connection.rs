//! A lean HTTP/1.1 client: one connection, one request at a time, nothing that could take the time of the server.

use std::io;
use std::net::SocketAddr;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// The longest answer that is read: a task is far smaller.
const MAX_ANSWER: usize = 1 << 20;
/// Room for an answer, so that one read is enough for most.
const ROOM: usize = 4_096;

/// A connection that is kept alive.
pub(crate) struct Connection {
    stream: TcpStream,
    buffer: Vec<u8>,
}

/// What was answered.
pub(crate) struct Answer<'a> {
    /// The status code.
    pub(crate) status: u16,
    /// The body.
    pub(crate) body: &'a [u8],
}

impl Connection {
    /// Connects.
    pub(crate) async fn open(address: SocketAddr) -> io::Result<Self> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        Ok(Self { stream, buffer: Vec::with_capacity(ROOM) })
    }

    /// A GET, ready to be sent.
    pub(crate) fn get(address: SocketAddr, path: &str) -> Vec<u8> {
        format!("GET {path} HTTP/1.1\r\nHost: {address}\r\n\r\n").into_bytes()
    }

    /// A POST of JSON, ready to be sent. Headers are whole lines.
    pub(crate) fn post(address: SocketAddr, path: &str, headers: &str, body: &str) -> Vec<u8> {
        let length = body.len();
        format!(
            "POST {path} HTTP/1.1\r\nHost: {address}\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n{headers}\r\n{body}"
        )
        .into_bytes()
    }

    /// Sends a request and waits for its answer. After an error the connection is of no more use.
    pub(crate) async fn exchange(&mut self, request: &[u8]) -> io::Result<Answer<'_>> {
        self.stream.write_all(request).await?;
        self.buffer.clear();
        loop {
            if let Some(head) = Head::parse(&self.buffer)? {
                let end = head.length + head.body_bytes;
                if end > MAX_ANSWER {
                    return Err(broken("is too long"));
                }
                while self.buffer.len() < end {
                    self.read().await?;
                }
                return Ok(Answer { status: head.status, body: &self.buffer[head.length..end] });
            }
            if self.buffer.len() > MAX_ANSWER {
                return Err(broken("is too long"));
            }
            self.read().await?;
        }
    }

    async fn read(&mut self) -> io::Result<()> {
        match self.stream.read_buf(&mut self.buffer).await? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            _ => Ok(()),
        }
    }
}

/// What the head of an answer says.
#[derive(Debug, PartialEq, Eq)]
struct Head {
    status: u16,
    /// Its own length.
    length: usize,
    body_bytes: usize,
}

impl Head {
    /// Reads it, if it is there as a whole.
    fn parse(bytes: &[u8]) -> io::Result<Option<Self>> {
        let Some(length) = bytes.windows(4).position(|four| four == b"\r\n\r\n") else { return Ok(None) };
        let text = std::str::from_utf8(&bytes[..length]).map_err(|_| broken("has a head that is no text"))?;
        let mut lines = text.split("\r\n");
        let status = lines.next().and_then(|line| line.split(' ').nth(1)?.parse().ok());
        let body_bytes = lines.find_map(|line| {
            let (name, value) = line.split_once(':')?;
            name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse().ok())?
        });
        match (status, body_bytes) {
            (Some(status), Some(body_bytes)) => Ok(Some(Self { status, length: length + 4, body_bytes })),
            (None, _) => Err(broken("has no status")),
            (_, None) => Err(broken("does not say how long it is")),
        }
    }
}

fn broken(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("an answer {what}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_are_read_when_they_are_whole() {
        assert_eq!(Head::parse(b"HTTP/1.1 202 Accepted\r\ncontent-le").unwrap(), None);
        let whole = b"HTTP/1.1 202 Accepted\r\ndate: x\r\nContent-Length: 12\r\n\r\nhello";
        assert_eq!(Head::parse(whole).unwrap(), Some(Head { status: 202, length: 54, body_bytes: 12 }));
        assert!(Head::parse(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n").is_err());
        assert!(Head::parse(b"nonsense\r\n\r\n").is_err());
    }

    #[tokio::test]
    async fn an_answer_that_comes_in_pieces_is_put_together_and_the_connection_kept() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let server = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let request = Connection::get(address, "/x");
            for pieces in [
                &["HTTP/1.1 200 OK\r\nconte", "nt-length: 4\r\n\r\nab", "cd"][..],
                &["HTTP/1.1 503 No\r\nContent-Length: 0\r\n\r\n"],
            ] {
                let mut asked = vec![0; request.len()];
                stream.read_exact(&mut asked).await.unwrap();
                assert_eq!(asked, request);
                for piece in pieces {
                    stream.write_all(piece.as_bytes()).await.unwrap();
                    tokio::task::yield_now().await;
                }
            }
        });
        let mut connection = Connection::open(address).await.unwrap();
        let request = Connection::get(address, "/x");
        let answer = connection.exchange(&request).await.unwrap();
        assert_eq!((answer.status, answer.body), (200, &b"abcd"[..]));
        assert_eq!(connection.exchange(&request).await.unwrap().status, 503);
        server.await.unwrap();
        assert!(connection.exchange(&request).await.is_err(), "the server has left");
    }
}
