//! What the environment says about the hub, in the names of Python's `huggingface_hub`.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use crate::{Error, Result};

/// Where the hub is, where its files are kept, and who asks.
#[derive(Clone, PartialEq, Eq)]
pub struct Settings {
    /// The hub's address: `HF_ENDPOINT`.
    pub endpoint: String,
    /// `HF_TOKEN`, or what is in the file of `HF_TOKEN_PATH` or `HF_HOME/token`.
    pub token: Option<String>,
    /// `HF_HUB_CACHE`, else `HF_HOME/hub`, else `~/.cache/huggingface/hub`.
    pub cache: PathBuf,
    /// Whether the network is to be left alone: `HF_HUB_OFFLINE`.
    pub offline: bool,
    /// The longest wait for more of an answer: `HF_HUB_DOWNLOAD_TIMEOUT`, in seconds.
    pub patience: Option<Duration>,
    /// Certificate authorities to trust instead of the usual ones: `SSL_CERT_FILE`.
    pub authorities: Option<PathBuf>,
}

impl Settings {
    /// What the program's environment says.
    ///
    /// # Errors
    /// There is no home directory, and nothing says where else the cache is.
    pub fn from_env() -> Result<Self> {
        Self::from(|name| std::env::var_os(name))
    }

    fn from(variable: impl Fn(&str) -> Option<OsString>) -> Result<Self> {
        let set = |name: &str| variable(name).filter(|value| !value.is_empty());
        let text = |name: &str| set(name).and_then(|value| value.into_string().ok());
        let path = |name: &str| set(name).map(PathBuf::from);
        let home = || path("HOME").or_else(|| path("USERPROFILE"));
        let caches = || path("XDG_CACHE_HOME").or_else(|| home().map(|home| home.join(".cache")));
        let hf_home = path("HF_HOME").or_else(|| caches().map(|caches| caches.join("huggingface")));
        let cache = path("HF_HUB_CACHE")
            .or_else(|| path("HUGGINGFACE_HUB_CACHE"))
            .or_else(|| hf_home.as_ref().map(|home| home.join("hub")))
            .ok_or_else(|| {
                Error::Request("there is no home directory: say with HF_HOME where models are kept".into())
            })?;
        let token_file = path("HF_TOKEN_PATH").or_else(|| hf_home.map(|home| home.join("token")));
        let saved_token = || std::fs::read_to_string(token_file?).ok();
        let token = text("HF_TOKEN").or_else(|| text("HUGGING_FACE_HUB_TOKEN")).or_else(saved_token);
        let is_true = |name: &str| {
            text(name).is_some_and(|value| matches!(&*value.to_ascii_uppercase(), "1" | "ON" | "YES" | "TRUE"))
        };
        Ok(Settings {
            endpoint: text("HF_ENDPOINT").unwrap_or_else(|| "https://huggingface.co".into()),
            token: token.map(|token| token.trim().to_owned()).filter(|token| !token.is_empty()),
            cache,
            offline: is_true("HF_HUB_OFFLINE") || is_true("TRANSFORMERS_OFFLINE"),
            patience: text("HF_HUB_DOWNLOAD_TIMEOUT")
                .and_then(|seconds| seconds.parse().ok())
                .filter(|&seconds| seconds > 0)
                .map(Duration::from_secs),
            authorities: path("SSL_CERT_FILE"),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn settings(variables: &[(&str, &str)]) -> Result<Settings> {
        Settings::from(|name| variables.iter().find(|(key, _)| *key == name).map(|(_, value)| value.into()))
    }

    #[test]
    fn the_cache_is_where_python_has_it() {
        let cache = |variables: &[(&str, &str)]| settings(variables).unwrap().cache;
        let mut variables = vec![("HOME", "/h")];
        for (variable, expected) in [
            (("x", "y"), "/h/.cache/huggingface/hub"),
            (("XDG_CACHE_HOME", "/c"), "/c/huggingface/hub"),
            (("HF_HOME", "/f"), "/f/hub"),
            (("HUGGINGFACE_HUB_CACHE", "/old"), "/old"),
            (("HF_HUB_CACHE", "/new"), "/new"),
        ] {
            variables.push(variable);
            assert_eq!(cache(&variables), Path::new(expected));
        }
        assert_eq!(cache(&[("HF_HUB_CACHE", ""), ("USERPROFILE", "/u")]), Path::new("/u/.cache/huggingface/hub"));
        assert!(settings(&[]).err().unwrap().to_string().contains("HF_HOME"));
    }

    #[test]
    fn a_token_comes_from_the_environment_or_a_file() {
        let dir = tempfile::tempdir().unwrap();
        let home = dir.path().to_str().unwrap();
        let token = |more: &[(&str, &str)]| settings(&[more, &[("HF_HOME", home)]].concat()).unwrap().token;
        assert_eq!(token(&[]), None);
        std::fs::write(dir.path().join("token"), "hf_file\n").unwrap();
        assert_eq!(token(&[]).as_deref(), Some("hf_file"));
        assert_eq!(token(&[("HF_TOKEN", " hf_variable ")]).as_deref(), Some("hf_variable"));
        assert_eq!(token(&[("HF_TOKEN_PATH", "/nowhere/token")]), None);
    }

    #[test]
    fn switches_and_numbers() {
        let with = |name, value| settings(&[("HOME", "/h"), (name, value)]).unwrap();
        assert!(["1", "true", "ON", "yes"].iter().all(|value| with("HF_HUB_OFFLINE", value).offline));
        assert!(["", "0", "no"].iter().all(|value| !with("HF_HUB_OFFLINE", value).offline));
        assert!(with("TRANSFORMERS_OFFLINE", "1").offline);
        assert_eq!(with("HF_HUB_DOWNLOAD_TIMEOUT", "7").patience, Some(Duration::from_secs(7)));
        assert!(["0", "x", "-1"].iter().all(|value| with("HF_HUB_DOWNLOAD_TIMEOUT", value).patience.is_none()));
        assert_eq!(with("HF_ENDPOINT", "http://mirror").endpoint, "http://mirror");
    }
}
