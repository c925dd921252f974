//! How much memory the machine can give.

use std::fs;

/// Bytes of main memory that a new program can have now: what the kernel calls available, no more than
/// what is left of the control group's limit. `None` where the system does not say.
pub fn available() -> Option<u64> {
    let host = available_of(&fs::read_to_string("/proc/meminfo").ok()?)?;
    let read = |name: &str| fs::read_to_string(format!("/sys/fs/cgroup/{name}")).ok()?.trim().parse::<u64>().ok();
    let group = read("memory.max").zip(read("memory.current")).map(|(limit, used)| limit.saturating_sub(used));
    Some(group.map_or(host, |group| group.min(host)))
}

/// Total bytes of main memory.
pub fn total() -> Option<u64> {
    field(&fs::read_to_string("/proc/meminfo").ok()?, "MemTotal:")
}

/// The most main memory that this program has had at a time, mapped files included; `None` where the system
/// does not say.
pub fn peak() -> Option<u64> {
    field(&fs::read_to_string("/proc/self/status").ok()?, "VmHWM:")
}

fn available_of(meminfo: &str) -> Option<u64> {
    field(meminfo, "MemAvailable:")
}

fn field(meminfo: &str, name: &str) -> Option<u64> {
    let line = meminfo.lines().find(|line| line.starts_with(name))?;
    line.split_whitespace().nth(1)?.parse::<u64>().ok()?.checked_mul(1024)
}

/// Bytes as people read them: binary units with one decimal.
pub fn human(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 1023.95 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 { format!("{bytes} B") } else { format!("{value:.1} {}", UNITS[unit]) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn meminfo_is_in_kibibytes() {
        let text = "MemTotal:       24689764 kB\nMemFree:          123 kB\nMemAvailable:   24000000 kB\n";
        assert_eq!(available_of(text), Some(24_000_000 * 1024));
        assert_eq!(field(text, "MemTotal:"), Some(24_689_764 * 1024));
        assert_eq!(available_of("MemTotal: 1 kB\n"), None);
        assert_eq!(available_of("MemAvailable: lots\n"), None);
    }

    #[test]
    fn sizes_are_readable() {
        assert_eq!(human(0), "0 B");
        assert_eq!(human(1023), "1023 B");
        assert_eq!(human(1024), "1.0 KiB");
        assert_eq!(human(1024 * 1024 - 1), "1.0 MiB");
        assert_eq!(human(5 << 30), "5.0 GiB");
        assert_eq!(human(u64::MAX), "16777216.0 TiB");
    }
}
