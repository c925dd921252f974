//! The hub's checksums: SHA-256 of a large file, git's SHA-1 of a small one.

use sha2::Digest;

/// A running checksum.
pub enum Checksum {
    /// Of what git keeps for a file: its length, then its bytes.
    Git(sha1::Sha1),
    /// Of the bytes, for files in the large file storage.
    Sha256(sha2::Sha256),
    /// The hub's tag is no checksum that is known here; only the length can be checked.
    Unknown,
}

impl Checksum {
    /// The kind that `tag`, a file's tag on the hub, is: 64 hexadecimal digits are SHA-256, 40 are git's.
    pub fn of_kind(tag: &str, size: u64) -> Self {
        let hexadecimal = tag.bytes().all(|c| c.is_ascii_hexdigit());
        match tag.len() {
            64 if hexadecimal => Checksum::sha256(),
            40 if hexadecimal => Checksum::git(size),
            _ => Checksum::Unknown,
        }
    }

    /// SHA-256 of nothing yet.
    pub fn sha256() -> Self {
        Checksum::Sha256(sha2::Sha256::new())
    }

    /// Git's checksum of a file of `size` bytes, none of which have been seen.
    pub fn git(size: u64) -> Self {
        let mut sum = sha1::Sha1::new();
        sum.update(format!("blob {size}\0"));
        Checksum::Git(sum)
    }

    /// More of the file.
    pub fn update(&mut self, bytes: &[u8]) {
        match self {
            Checksum::Git(sum) => sum.update(bytes),
            Checksum::Sha256(sum) => sum.update(bytes),
            Checksum::Unknown => {}
        }
    }

    /// The checksum of all bytes so far, in hexadecimal; `None` where the kind is unknown.
    pub fn hex(&self) -> Option<String> {
        let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        match self {
            Checksum::Git(sum) => Some(hex(&sum.clone().finalize())),
            Checksum::Sha256(sum) => Some(hex(&sum.clone().finalize())),
            Checksum::Unknown => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_checksums() {
        // `printf abc | git hash-object --stdin` and FIPS 180-2's example.
        let (git, sha) = (
            "f2ba8f84ab5c1bce84a7b441cb1959cfc7093b7f",
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad",
        );
        for tag in [git, sha] {
            let mut sum = Checksum::of_kind(tag, 3);
            sum.update(b"a");
            sum.update(b"bc");
            assert_eq!(sum.hex().unwrap(), tag);
        }
        assert!(Checksum::of_kind("abc", 3).hex().is_none());
        assert!(Checksum::of_kind(&"x".repeat(64), 3).hex().is_none());
    }
}
