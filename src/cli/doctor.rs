//! `trine doctor`: what this program and this machine have, with a verdict on what matters.

use std::thread;

use serde_json::{Value, json};
use trine_backend::Backend;

use super::Exit;
use super::output::{columns, print, print_json};
use crate::Result;
use crate::memory::{self, human};

/// Below this even a small model leaves the system no room.
const LITTLE_MEMORY: u64 = 1 << 30;

/// Runs the subcommand.
///
/// # Errors
/// The backend can't be opened.
pub(super) fn run<B: Backend>(device: &B::Options, compiled: &[&str], json: bool) -> Result<Exit> {
    let info = B::open(device)?.info();
    let features = cpu_features();
    let present: Vec<_> = features.iter().filter(|(_, present)| *present).map(|(name, _)| *name).collect();
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let available = info.free_memory.or_else(memory::available);
    let checks = [check_instructions(&features), check_memory(available), check_build(cfg!(debug_assertions))];

    if json {
        let facts: serde_json::Map<String, Value> =
            info.facts.iter().map(|(name, fact)| (name.clone(), fact.as_str().into())).collect();
        let checks: Vec<_> = checks
            .iter()
            .map(|check| json!({ "check": check.name, "ok": check.ok, "verdict": check.verdict }))
            .collect();
        print_json(&json!({
            "version": env!("CARGO_PKG_VERSION"),
            "target": format!("{}-{}", std::env::consts::ARCH, std::env::consts::OS),
            "backend": B::NAME,
            "compiled": compiled,
            "device": { "name": info.name, "facts": facts, "free_memory": info.free_memory },
            "cpu": { "features": present, "threads": cores },
            "memory": { "total": memory::total(), "available": memory::available() },
            "checks": checks,
        }))?;
        return Ok(Exit::Success);
    }
    let size = |bytes: Option<u64>| bytes.map_or("unknown".to_owned(), human);
    let mut rows = vec![
        ("version".to_owned(), env!("CARGO_PKG_VERSION").to_owned()),
        ("target".into(), format!("{} {}", std::env::consts::ARCH, std::env::consts::OS)),
        ("backend".into(), format!("{} (compiled in: {})", B::NAME, compiled.join(", "))),
        ("device".into(), info.name),
    ];
    rows.extend(info.facts);
    rows.extend([
        ("CPU features".into(), if present.is_empty() { "none that matter".into() } else { present.join(" ") }),
        ("CPU threads".into(), cores.to_string()),
        ("memory".into(), format!("{} free of {}", size(memory::available()), size(memory::total()))),
    ]);
    rows.extend(info.free_memory.map(|free| ("device memory".into(), format!("{} free", human(free)))));
    let mut text = columns(&rows) + "\n";
    for check in &checks {
        text += &format!("[{}] {}: {}\n", if check.ok { "ok" } else { "!!" }, check.name, check.verdict);
    }
    print(&text)?;
    Ok(Exit::Success)
}

/// Something that was looked at.
#[derive(Debug, PartialEq)]
struct Check {
    name: &'static str,
    ok: bool,
    verdict: String,
}

/// The CPU's instruction sets that speed can depend on, and whether it has them.
fn cpu_features() -> Vec<(&'static str, bool)> {
    #[cfg(target_arch = "x86_64")]
    {
        use std::is_x86_feature_detected as has;
        vec![
            ("avx", has!("avx")),
            ("avx2", has!("avx2")),
            ("fma", has!("fma")),
            ("f16c", has!("f16c")),
            ("bmi2", has!("bmi2")),
            ("avx512f", has!("avx512f")),
            ("avx512vnni", has!("avx512vnni")),
            ("avxvnni", has!("avxvnni")),
        ]
    }
    #[cfg(target_arch = "aarch64")]
    {
        use std::arch::is_aarch64_feature_detected as has;
        vec![
            ("neon", has!("neon")),
            ("dotprod", has!("dotprod")),
            ("i8mm", has!("i8mm")),
            ("fp16", has!("fp16")),
            ("sve", has!("sve")),
        ]
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    Vec::new()
}

/// The kernels are written for AVX2 and NEON; elsewhere plain code does their work.
fn check_instructions(features: &[(&'static str, bool)]) -> Check {
    let has = |name: &str| features.contains(&(name, true));
    let missing: Vec<_> = match features.iter().any(|(name, _)| *name == "avx2") {
        true => ["avx2", "fma", "bmi2"].into_iter().filter(|name| !has(name)).collect(),
        false => ["neon"].into_iter().filter(|name| !has(name)).collect(),
    };
    let ok = missing.is_empty();
    let verdict = if ok {
        "the CPU has what the fast kernels need".into()
    } else {
        format!("the CPU lacks {}: the CPU backend uses plain code, which is many times slower", missing.join(", "))
    };
    Check { name: "instructions", ok, verdict }
}

fn check_memory(available: Option<u64>) -> Check {
    let (ok, verdict) = match available {
        None => (true, "the system does not say what is free: models are loaded without asking".into()),
        Some(free) if free < LITTLE_MEMORY => {
            (false, format!("{} is free, which is little: only small models fit, with a small -c", human(free)))
        }
        Some(free) => (true, format!("{} is free; trine info -m DIR shows what a model takes", human(free))),
    };
    Check { name: "memory", ok, verdict }
}

fn check_build(debug: bool) -> Check {
    let verdict = if debug { "with debug assertions: build with --release for speed" } else { "optimised" };
    Check { name: "build", ok: !debug, verdict: verdict.into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_instruction_set_is_named() {
        let check = check_instructions(&[("avx", true), ("avx2", false), ("fma", true), ("bmi2", false)]);
        assert!(!check.ok && check.verdict.starts_with("the CPU lacks avx2, bmi2:"), "{check:?}");
        assert!(check_instructions(&[("avx2", true), ("fma", true), ("bmi2", true)]).ok);
        assert!(check_instructions(&[("neon", true), ("dotprod", false)]).ok);
        assert!(!check_instructions(&[]).ok, "another architecture has plain code only");
    }

    #[test]
    fn little_memory_is_noticed() {
        assert!(!check_memory(Some(LITTLE_MEMORY - 1)).ok);
        assert!(check_memory(Some(LITTLE_MEMORY)).ok);
        assert!(check_memory(None).ok);
    }
}
