//! Bytes as config.json, and as generation_config.json too.
#![no_main]

use std::path::Path;

use libfuzzer_sys::fuzz_target;
use trine::model::Config;

fuzz_target!(|data: &[u8]| {
    let file = (Path::new("config.json"), data);
    match Config::parse(file, Some(file)) {
        Ok(config) => {
            assert!(config.vocab > 0 && config.hidden > 0 && config.layers > 0 && config.context > 0);
            assert_eq!(config.heads.query % config.heads.kv, 0);
            assert!(config.eos.iter().chain(&config.bos).all(|&id| (id as usize) < config.vocab));
        }
        Err(error) => assert!(!error.to_string().contains('\n')),
    }
});
