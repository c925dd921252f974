//! A small hub on this machine, which fails on demand.

use std::collections::{BTreeMap, VecDeque};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// The commit that `main` is at.
pub(crate) const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";
/// The one repository.
pub(crate) const REPO: &str = "owner/some-model";

/// What goes wrong with one answer that has a file's bytes, or with the one before it.
#[derive(Clone, Debug)]
pub(crate) enum Fault {
    /// The connection closes after so many bytes.
    CloseAfter(usize),
    /// One byte is another one.
    WrongByte,
    /// The whole file although a part was asked for.
    IgnoreRange,
    /// A part that begins elsewhere.
    WrongRange,
    /// More bytes than the hub said.
    TooLong,
    /// Nothing more after so many bytes, while the connection stays.
    StallAfter(usize),
    /// An answer with this status and header.
    Status(u16, &'static str),
}

/// A request as it came.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    pub(crate) method: String,
    pub(crate) path: String,
    pub(crate) range: Option<String>,
    pub(crate) authorization: Option<String>,
    /// Whether it came to the host with the large files.
    pub(crate) storage: bool,
}

/// The name that the hub gives to contents, which may be in the large file storage.
pub(crate) type Tag = fn(&[u8], bool) -> String;

struct State {
    tag: Tag,
    files: BTreeMap<String, (Vec<u8>, bool)>,
    /// What `main`'s list of files names; the files themselves without it.
    listing: Mutex<Option<String>>,
    token: Option<String>,
    storage: String,
    faults: Mutex<VecDeque<Fault>>,
    seen: Mutex<Vec<Seen>>,
}

/// The server; its threads end with the program.
pub(crate) struct Server {
    pub(crate) endpoint: String,
    state: Arc<State>,
}

impl Server {
    /// A hub with these files (name, contents, whether in the large file storage), which asks for `token`.
    pub(crate) fn start(files: &[(&str, &[u8], bool)], token: Option<&str>, tag: Tag) -> Self {
        let bind = || TcpListener::bind("127.0.0.1:0").unwrap();
        let (hub, storage) = (bind(), bind());
        let state = Arc::new(State {
            tag,
            files: files.iter().map(|&(name, bytes, large)| (name.to_owned(), (bytes.to_vec(), large))).collect(),
            listing: Mutex::new(None),
            token: token.map(|token| format!("Bearer {token}")),
            storage: format!("http://{}", storage.local_addr().unwrap()),
            faults: Mutex::default(),
            seen: Mutex::default(),
        });
        let endpoint = format!("http://{}", hub.local_addr().unwrap());
        for (listener, is_storage) in [(hub, false), (storage, true)] {
            let state = state.clone();
            std::thread::spawn(move || {
                for stream in listener.incoming() {
                    let (state, stream) = (state.clone(), stream.unwrap());
                    std::thread::spawn(move || state.serve(&stream, is_storage));
                }
            });
        }
        Server { endpoint, state }
    }

    /// The next answers with bytes fail in these ways, one each.
    pub(crate) fn fail(&self, faults: &[Fault]) {
        self.state.faults.lock().unwrap().extend(faults.iter().cloned());
    }

    /// The list of files is this.
    pub(crate) fn list(&self, listing: &str) {
        *self.state.listing.lock().unwrap() = Some(listing.to_owned());
    }

    /// The requests since the last call.
    pub(crate) fn seen(&self) -> Vec<Seen> {
        std::mem::take(&mut self.state.seen.lock().unwrap())
    }
}

impl State {
    fn serve(&self, stream: &TcpStream, storage: bool) {
        let mut lines = BufReader::new(stream).lines().map_while(Result::ok);
        let Some(first) = lines.next() else { return };
        let mut words = first.split(' ').map(str::to_owned);
        let (method, path) = (words.next().unwrap(), words.next().unwrap());
        let headers: Vec<String> = lines.take_while(|line| !line.is_empty()).collect();
        let header = |name: &str| {
            let found = headers.iter().find_map(|line| {
                let (key, value) = line.split_once(':')?;
                key.eq_ignore_ascii_case(name).then(|| value.trim().to_owned())
            });
            found.filter(|value| !value.is_empty())
        };
        let seen = Seen { method, path, range: header("range"), authorization: header("authorization"), storage };
        self.seen.lock().unwrap().push(seen.clone());
        // A reader that gave up is no fault of the server.
        let _ = self.answer(stream, &seen);
        let _ = stream.shutdown(std::net::Shutdown::Write);
        let _ = std::io::copy(&mut stream.take(1 << 16), &mut std::io::sink());
    }

    fn answer(&self, stream: &TcpStream, seen: &Seen) -> std::io::Result<()> {
        if !seen.storage && self.token.is_some() && seen.authorization != self.token {
            return head(stream, 401, &["X-Error-Code: GatedRepo".into(), "Content-Length: 0".into()]);
        }
        if let Some(rest) = seen.path.strip_prefix("/api/models/") {
            return self.list(stream, rest);
        }
        let resolve = format!("/{REPO}/resolve/{COMMIT}/");
        let name = seen.path.strip_prefix(&resolve).or_else(|| seen.path.strip_prefix("/storage/"));
        let Some((name, (bytes, large))) = name.and_then(|name| self.files.get_key_value(name)) else {
            return head(stream, 404, &["X-Error-Code: EntryNotFound".into(), "Content-Length: 0".into()]);
        };
        let tag = (self.tag)(bytes, *large);
        if *large && !seen.storage {
            let facts = [
                format!("Location: {}/storage/{name}", self.storage),
                format!("X-Repo-Commit: {COMMIT}"),
                format!("X-Linked-Size: {}", bytes.len()),
                format!("X-Linked-ETag: \"{tag}\""),
                "ETag: \"another\"".into(),
                "Content-Length: 11".into(),
            ];
            head(stream, 302, &facts)?;
            return if seen.method == "HEAD" { Ok(()) } else { { stream }.write_all(b"over there\n") };
        }
        if seen.method == "HEAD" {
            let facts = [format!("ETag: \"{tag}\""), format!("Content-Length: {}", bytes.len())];
            return head(stream, 200, &facts);
        }
        let fault = self.faults.lock().unwrap().pop_front();
        send(stream, bytes, seen.range.as_deref(), fault)
    }

    fn list(&self, stream: &TcpStream, rest: &str) -> std::io::Result<()> {
        if rest != format!("{REPO}/revision/main?blobs=true") {
            let code = if rest.starts_with(REPO) { "RevisionNotFound" } else { "RepoNotFound" };
            let status = if code == "RepoNotFound" { 401 } else { 404 };
            return head(stream, status, &[format!("X-Error-Code: {code}"), "Content-Length: 0".into()]);
        }
        let file = |(name, (bytes, _)): (&String, &(Vec<u8>, bool))| {
            format!(r#"{{"rfilename":"{name}","size":{}}}"#, bytes.len())
        };
        let files = self.files.iter().map(file).collect::<Vec<_>>().join(",");
        let usual = format!(r#"{{"id":"{REPO}","sha":"{COMMIT}","siblings":[{files}]}}"#);
        let listing = self.listing.lock().unwrap().clone().unwrap_or(usual);
        head(stream, 200, &[format!("Content-Length: {}", listing.len())])?;
        { stream }.write_all(listing.as_bytes())
    }
}

fn head(mut stream: &TcpStream, status: u16, headers: &[String]) -> std::io::Result<()> {
    let head = format!("HTTP/1.1 {status} Some\r\nConnection: close\r\n{}\r\n\r\n", headers.join("\r\n"));
    stream.write_all(head.as_bytes())
}

fn send(mut stream: &TcpStream, bytes: &[u8], range: Option<&str>, fault: Option<Fault>) -> std::io::Result<()> {
    if let Some(Fault::Status(status, header)) = fault {
        return head(stream, status, &[header.into(), "Content-Length: 0".into()]);
    }
    let range = range.filter(|_| !matches!(fault, Some(Fault::IgnoreRange)));
    let start =
        range.map(|range| range.strip_prefix("bytes=").unwrap().trim_end_matches('-').parse::<usize>().unwrap());
    let mut body = bytes[start.unwrap_or(0).min(bytes.len())..].to_vec();
    match fault {
        Some(Fault::WrongByte) => body[0] ^= 1,
        Some(Fault::TooLong) => body.extend([0; 100]),
        _ => {}
    }
    let length = format!("Content-Length: {}", body.len());
    match start {
        None => head(stream, 200, &[length])?,
        Some(start) => {
            let claimed = if matches!(fault, Some(Fault::WrongRange)) { start / 2 } else { start };
            let range = format!("Content-Range: bytes {claimed}-{}/{}", bytes.len() - 1, bytes.len());
            head(stream, 206, &[length, range])?;
        }
    }
    match fault {
        Some(Fault::CloseAfter(count)) => stream.write_all(&body[..count.min(body.len())]),
        Some(Fault::StallAfter(count)) => {
            stream.write_all(&body[..count.min(body.len())])?;
            std::thread::sleep(Duration::from_secs(2));
            Ok(())
        }
        _ => stream.write_all(&body),
    }
}
