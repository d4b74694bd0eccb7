//! Standard output that a closed pipe does not upset.

use std::io::{self, IsTerminal, Write};

use super::safe_json;
use crate::exit::Failure;

/// Where a command writes its answer.
pub(crate) struct Output {
    to: Box<dyn Write + Send>,
    json: bool,
    terminal: bool,
    closed: bool,
}

impl Output {
    /// Standard output.
    pub(crate) fn stdout(json: bool) -> Self {
        let stdout = io::stdout();
        let terminal = stdout.is_terminal();
        Self { to: Box::new(stdout), json, terminal, closed: false }
    }

    /// Whether the answer is wanted as JSON.
    pub(crate) fn wants_json(&self) -> bool {
        self.json
    }

    /// Writes a line. Once the reader is gone (`| head`) nothing more is written and nothing is said about it: the
    /// command's own outcome is what its exit code tells.
    pub(crate) fn line(&mut self, line: &str) -> Result<(), Failure> {
        if self.closed {
            return Ok(());
        }
        match writeln!(self.to, "{line}").and_then(|()| self.to.flush()) {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {
                self.closed = true;
                Ok(())
            }
            written => written.map_err(|error| Failure::other("cannot write the answer", error)),
        }
    }

    /// Writes JSON as it came; on a terminal with whatever could harm it escaped.
    pub(crate) fn json_line(&mut self, json: &str) -> Result<(), Failure> {
        if self.terminal { self.line(&safe_json(json)) } else { self.line(json) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Closed;

    impl Write for Closed {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(io::ErrorKind::BrokenPipe.into())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_reader_that_left_is_no_failure() {
        let mut output = Output { to: Box::new(Closed), json: false, terminal: false, closed: false };
        assert!(output.line("x").is_ok());
        assert!(output.closed);
        assert!(output.line("y").is_ok());
    }
}
