//! Names that come from outside and become paths.

/// Whether `name` is a file below the folder that it is put into, on every system: relative, no `..`, nothing that
/// Windows takes for a drive, a stream or a separator, no control characters.
pub(crate) fn is_below(name: &str) -> bool {
    let sound = |part: &str| {
        !part.is_empty()
            && part != "."
            && part != ".."
            && !part.contains(['\\', ':'])
            && !part.contains(char::is_control)
    };
    name.len() <= 1024 && name.split('/').all(sound)
}

/// Whether `commit` can be a commit's id.
pub(crate) fn is_commit(commit: &str) -> bool {
    matches!(commit.len(), 40 | 64) && commit.bytes().all(|c| matches!(c, b'0'..=b'9' | b'a'..=b'f'))
}

/// Whether `repo` is OWNER/NAME in the hub's alphabet.
pub(crate) fn is_repo(repo: &str) -> bool {
    let part = |part: &str| {
        part.bytes().all(|c| c.is_ascii_alphanumeric() || matches!(c, b'-' | b'_' | b'.')) && !part.contains("..")
    };
    is_below(repo) && repo.split('/').count() == 2 && repo.split('/').all(part)
}

/// `text` as it stands in an address: letters, digits and `-._~` as they are, `/` where `slash` says so.
pub(crate) fn escaped(text: &str, slash: bool) -> String {
    let mut address = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => address.push(char::from(byte)),
            b'/' if slash => address.push('/'),
            _ => address += &format!("%{byte:02X}"),
        }
    }
    address
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_stay_below_their_folder() {
        for good in ["a", "a/b.json", "..a", "a..", "-", "ü", "a b"] {
            assert!(is_below(good), "{good}");
        }
        let long = "a/".repeat(600) + "a";
        for bad in
            ["", "/", "/a", "a/", "a//b", ".", "..", "../a", "a/../b", "a/..", "a\\b", "C:a", "a\0", "a\nb", &long]
        {
            assert!(!is_below(bad), "{bad}");
        }
    }

    #[test]
    fn commits_and_repositories_have_their_form() {
        assert!(is_commit(&"0a".repeat(20)) && is_commit(&"f0".repeat(32)));
        for bad in ["", "main", "../../..", &"0A".repeat(20), &"0g".repeat(20), &"0".repeat(41)] {
            assert!(!is_commit(bad), "{bad}");
        }
        assert!(is_repo("Qwen/Qwen2.5-0.5B_x"));
        for bad in ["", "a", "a/b/c", "../b", "a/..", "a/b?c", "a b/c", "/a", "a/", "a/b..c"] {
            assert!(!is_repo(bad), "{bad}");
        }
    }

    #[test]
    fn addresses_are_escaped() {
        assert_eq!(escaped("a b/ü?#%.json", true), "a%20b/%C3%BC%3F%23%25.json");
        assert_eq!(escaped("refs/pr/1", false), "refs%2Fpr%2F1");
    }
}
