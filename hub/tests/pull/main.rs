//! Downloads from a hub on this machine that serves files as the real one does, and fails.

mod server;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use server::{COMMIT, Fault, REPO, Server};
use trine_hub::{Checksum, Client, Error, Options, Result};

const CONFIG: &[u8] = b"{\"model_type\": \"some\"}\n";

/// What the real hub calls these bytes.
fn tag(bytes: &[u8], large: bool) -> String {
    let mut sum = if large { Checksum::sha256() } else { Checksum::git(bytes.len() as u64) };
    sum.update(bytes);
    sum.hex().unwrap()
}

/// Bytes that differ everywhere, more than a buffer of them.
fn weights() -> Vec<u8> {
    (0..1_000_003u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect()
}

fn hub(token: Option<&str>) -> Server {
    Server::start(
        &[("config.json", CONFIG, false), ("model.safetensors", &weights(), true), ("sub/a b.txt", b"", false)],
        token,
        tag,
    )
}

fn client(server: &Server, token: Option<&str>) -> Client {
    let patience = Duration::from_millis(500);
    let pause = Duration::from_millis(1);
    let options =
        Options { token: token.map(str::to_owned), patience, pause, attempts: 3, ..Options::new(&server.endpoint) };
    Client::new(&options).unwrap()
}

/// A cache, of which the repository's folder does not exist yet.
struct Cache(tempfile::TempDir);

impl Cache {
    fn new() -> Self {
        Cache(tempfile::tempdir().unwrap())
    }

    fn folder(&self) -> PathBuf {
        self.0.path().join("models--owner--some-model")
    }

    fn fetch(&self, client: &Client, file: &str) -> Result<PathBuf> {
        client.fetch(REPO, COMMIT, file, &self.folder(), &mut |_| true)
    }

    /// The unfinished part of the weights.
    fn part(&self) -> PathBuf {
        self.folder().join("blobs").join(tag(&weights(), true) + ".incomplete")
    }

    fn put_part(&self, bytes: &[u8]) {
        fs::create_dir_all(self.folder().join("blobs")).unwrap();
        fs::write(self.part(), bytes).unwrap();
    }
}

#[track_caller]
fn is_weights(path: &Path) {
    assert!(fs::read(path).unwrap() == weights(), "{} has other bytes", path.display());
}

/// The ranges that bytes were asked for in.
fn ranges(server: &Server) -> Vec<Option<String>> {
    server.seen().into_iter().filter(|seen| seen.method == "GET" && seen.storage).map(|seen| seen.range).collect()
}

#[test]
fn files_come_into_the_hubs_layout() {
    let (server, cache) = (hub(None), Cache::new());
    let client = client(&server, None);
    let listing = client.list(REPO, "main", &mut || true).unwrap();
    assert_eq!(listing.commit, COMMIT);
    let files: Vec<_> = listing.files.iter().map(|file| (file.name.as_str(), file.size)).collect();
    assert_eq!(files, [("config.json", Some(23)), ("model.safetensors", Some(1_000_003)), ("sub/a b.txt", Some(0))]);

    let mut told = Vec::new();
    let folder = cache.folder();
    let path = client.fetch(REPO, COMMIT, "model.safetensors", &folder, &mut |done| {
        told.push(done);
        true
    });
    let path = path.unwrap();
    assert_eq!(path, folder.join("snapshots").join(COMMIT).join("model.safetensors"));
    is_weights(&path);
    is_weights(&folder.join("blobs").join(tag(&weights(), true)));
    assert!(told.is_sorted() && told.last() == Some(&1_000_003), "{told:?}");
    let config = cache.fetch(&client, "config.json").unwrap();
    assert_eq!(fs::read(&config).unwrap(), CONFIG);
    #[cfg(unix)]
    assert_eq!(fs::read_link(config).unwrap(), Path::new("../../blobs").join(tag(CONFIG, false)));
    // Nothing unfinished is left.
    let blobs = fs::read_dir(folder.join("blobs")).unwrap().count();
    assert_eq!((blobs, fs::read_dir(folder.join("snapshots").join(COMMIT)).unwrap().count()), (2, 2));

    server.seen();
    is_weights(&cache.fetch(&client, "model.safetensors").unwrap());
    assert!(server.seen().is_empty(), "a file that is there is not asked for");
}

#[test]
fn contents_that_are_there_get_their_name_without_a_download() {
    let (server, cache) = (hub(None), Cache::new());
    cache.put_part(&weights());
    fs::rename(cache.part(), cache.part().with_extension("")).unwrap();
    is_weights(&cache.fetch(&client(&server, None), "model.safetensors").unwrap());
    assert_eq!(ranges(&server), []);
}

#[test]
fn a_broken_connection_is_gone_on_with() {
    let (server, cache) = (hub(None), Cache::new());
    // More breaks in all than attempts in a row: each brings something.
    server.fail(&[
        Fault::CloseAfter(300_000),
        Fault::CloseAfter(100_000),
        Fault::StallAfter(50_000),
        Fault::CloseAfter(10),
        Fault::CloseAfter(10),
    ]);
    is_weights(&cache.fetch(&client(&server, None), "model.safetensors").unwrap());
    let range = |start: u32| Some(format!("bytes={start}-"));
    assert_eq!(ranges(&server), [None, range(300_000), range(400_000), range(450_000), range(450_010), range(450_020)]);
}

#[test]
fn a_hub_that_goes_on_failing_is_given_up_and_the_part_kept() {
    let (server, cache) = (hub(None), Cache::new());
    server.fail(&[Fault::CloseAfter(300_000), Fault::CloseAfter(0), Fault::CloseAfter(0)]);
    let client = client(&server, None);
    let line = cache.fetch(&client, "model.safetensors").unwrap_err().to_string();
    assert!(line.starts_with("owner/some-model/model.safetensors: the connection broke"), "{line}");
    assert!(fs::read(cache.part()).unwrap() == weights()[..300_000]);
    assert!(!cache.folder().join("snapshots").exists(), "nothing unfinished has a name");
    ranges(&server);
    is_weights(&cache.fetch(&client, "model.safetensors").unwrap());
    assert_eq!(ranges(&server), [Some("bytes=300000-".to_owned())]);
}

#[test]
fn a_server_without_ranges_sends_all_of_it() {
    for fault in [Fault::IgnoreRange, Fault::WrongRange, Fault::Status(416, "X: y")] {
        let (server, cache) = (hub(None), Cache::new());
        cache.put_part(&weights()[..200_000]);
        server.fail(std::slice::from_ref(&fault));
        is_weights(&cache.fetch(&client(&server, None), "model.safetensors").unwrap());
        assert_eq!(ranges(&server)[0], Some("bytes=200000-".to_owned()), "{fault:?}");
    }
}

#[test]
fn a_part_of_another_file_is_found_out() {
    let mut other = weights()[..200_000].to_vec();
    other[7] ^= 1;
    for part in [other, vec![0; 1_000_003], vec![0; 1_000_004]] {
        let (server, cache) = (hub(None), Cache::new());
        cache.put_part(&part);
        is_weights(&cache.fetch(&client(&server, None), "model.safetensors").unwrap());
    }
}

#[test]
fn a_whole_part_needs_no_more_than_its_checksum() {
    let (server, cache) = (hub(None), Cache::new());
    cache.put_part(&weights());
    is_weights(&cache.fetch(&client(&server, None), "model.safetensors").unwrap());
    assert_eq!(ranges(&server), []);
}

#[test]
fn wrong_bytes_are_thrown_away() {
    for (file, fault, part) in [
        ("model.safetensors", Fault::WrongByte, "its checksum is"),
        ("config.json", Fault::WrongByte, "its checksum is"),
        ("model.safetensors", Fault::TooLong, "longer than the 1000003 bytes"),
    ] {
        let (server, cache) = (hub(None), Cache::new());
        server.fail(&[fault]);
        let client = client(&server, None);
        let line = cache.fetch(&client, file).unwrap_err().to_string();
        assert!(line.contains(part) && line.ends_with("pull it again") | line.ends_with("thrown away"), "{line}");
        assert!(!cache.folder().join("snapshots").exists());
        cache.fetch(&client, file).unwrap();
    }
}

#[test]
fn a_busy_hub_is_asked_again() {
    let (server, cache) = (hub(None), Cache::new());
    let client = client(&server, None);
    server.fail(&[Fault::Status(503, "X: y"), Fault::Status(429, "Retry-After: 0")]);
    is_weights(&cache.fetch(&client, "model.safetensors").unwrap());
    // Not for longer than anybody waits, and not without end.
    let cases: [(&[Fault], &str); 3] = [
        (&[Fault::Status(429, "Retry-After: 3600")], "too many requests: the hub asks to wait 3600 s"),
        (&[const { Fault::Status(500, "X: y") }; 3], "the hub fails (status 500)"),
        (&[Fault::Status(418, "X: y")], "status 418"),
    ];
    for (faults, part) in cases {
        let cache = Cache::new();
        server.fail(faults);
        let line = cache.fetch(&client, "model.safetensors").unwrap_err().to_string();
        assert!(line.contains(part), "{line}");
    }
}

#[test]
fn the_token_goes_to_the_hub_alone() {
    let (server, cache) = (hub(Some("hf_secret")), Cache::new());
    let with = client(&server, Some("hf_secret"));
    with.list(REPO, "main", &mut || true).unwrap();
    is_weights(&cache.fetch(&with, "model.safetensors").unwrap());
    let seen = server.seen();
    assert!(seen.iter().any(|seen| seen.storage) && seen.iter().any(|seen| !seen.storage));
    for seen in seen {
        let expected = (!seen.storage).then(|| "Bearer hf_secret".to_owned());
        assert_eq!(seen.authorization, expected, "{seen:?}");
    }
    let line = client(&server, None).list(REPO, "main", &mut || true).unwrap_err().to_string();
    assert!(line.contains("gated") && line.contains("set HF_TOKEN"), "{line}");
    let line = client(&server, Some("hf_other")).list(REPO, "main", &mut || true).unwrap_err().to_string();
    assert!(line.contains("with the account of your token") && !line.contains("hf_other"), "{line}");
}

#[test]
fn what_is_not_there_is_said() {
    let (server, cache) = (hub(None), Cache::new());
    let client = client(&server, None);
    let list = |repo, revision| client.list(repo, revision, &mut || true).unwrap_err().to_string();
    assert_eq!(list(REPO, "v2"), "owner/some-model@v2: the repository has no such revision");
    assert!(list("no/body", "main").contains("not on the hub, or private: check the name, or set HF_TOKEN"));
    assert!(list("../x", "main").contains("OWNER/NAME"));
    let line = cache.fetch(&client, "pytorch_model.bin").unwrap_err().to_string();
    assert_eq!(line, "owner/some-model/pytorch_model.bin: the repository has no such file");
    server.list("<html>log in</html>");
    assert!(list(REPO, "main").contains("is HF_ENDPOINT right?"));
    server.list(&format!(r#"{{"sha":"{COMMIT}","siblings":[{{"rfilename":"../../.bashrc"}}]}}"#));
    assert!(list(REPO, "main").contains("no name for a file"));
    assert!(cache.fetch(&client, "../../x").unwrap_err().to_string().contains("no name of a file"));
}

#[test]
fn nobody_there_is_said_at_once() {
    // A port that was free a moment ago.
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let options = Options::new(format!("http://127.0.0.1:{port}"));
    let start = Instant::now();
    let error = Client::new(&options).unwrap().list(REPO, "main", &mut || true).unwrap_err().to_string();
    assert!(error.contains(&format!("the hub can't be reached at http://127.0.0.1:{port}")), "{error}");
    assert!(start.elapsed() < Duration::from_secs(20), "no pause of seconds between attempts");
}

#[test]
fn an_interrupt_keeps_the_part() {
    let (server, cache) = (hub(None), Cache::new());
    let client = client(&server, None);
    let stopped = client.fetch(REPO, COMMIT, "model.safetensors", &cache.folder(), &mut |done| done < 200_000);
    assert!(matches!(stopped, Err(Error::Interrupted)));
    let length = fs::metadata(cache.part()).unwrap().len();
    assert!((200_000..1_000_003).contains(&length), "{length}");
    ranges(&server);
    is_weights(&cache.fetch(&client, "model.safetensors").unwrap());
    assert_eq!(ranges(&server), [Some(format!("bytes={length}-"))]);
}

#[test]
fn two_at_once_download_once() {
    let (server, cache) = (hub(None), Cache::new());
    std::thread::scope(|scope| {
        let fetch = || is_weights(&cache.fetch(&client(&server, None), "model.safetensors").unwrap());
        let threads = [(); 4].map(|()| scope.spawn(fetch));
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    });
    assert_eq!(ranges(&server), [None]);
}

#[test]
fn names_are_escaped_and_empty_files_are_files() {
    let bytes: &[u8] = b"";
    let server = Server::start(&[("sub/a%20b.txt", bytes, false)], None, tag);
    let cache = Cache::new();
    let path = cache.fetch(&client(&server, None), "sub/a b.txt").unwrap();
    assert!(path.ends_with("sub/a b.txt"));
    assert_eq!(fs::read(path).unwrap(), bytes);
}
