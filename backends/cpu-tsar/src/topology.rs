//! How many cores are worth a thread each.
//!
//! Matrix products saturate a core's vector units, so a second hyper-thread adds nothing, and an
//! efficiency core makes the others wait for it: work is split evenly.

/// A logical CPU as Linux describes it under `/sys/devices/system/cpu`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Cpu {
    /// The CPUs that share its core, itself included.
    siblings: Vec<usize>,
    /// Relative speed, where the kernel knows (ARM big.LITTLE): the fastest has 1024.
    capacity: Option<u32>,
    /// Whether it is a performance core of a hybrid Intel CPU; true on all others.
    performance: bool,
}

/// Physical performance cores that this process may use (affinity mask and cgroup quota respected).
pub(crate) fn performance_cores() -> usize {
    let most = std::thread::available_parallelism().map_or(1, usize::from);
    match cfg!(target_os = "linux").then(allowed_cpus).flatten() {
        Some(cpus) => count_cores(&cpus).clamp(1, most),
        None => most,
    }
}

/// The CPU's model where the system says it, else its architecture.
pub(crate) fn cpu_name() -> String {
    let cpuinfo = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    parse_model(&cpuinfo).unwrap_or(std::env::consts::ARCH).to_owned()
}

/// The first "model name" in `/proc/cpuinfo`.
fn parse_model(cpuinfo: &str) -> Option<&str> {
    let (_, name) = cpuinfo.lines().find(|line| line.starts_with("model name"))?.split_once(':')?;
    Some(name.trim()).filter(|name| !name.is_empty())
}

/// The CPUs of this process's affinity mask; none if `/proc` or `/sys` do not say.
fn allowed_cpus() -> Option<Vec<Cpu>> {
    let read = |path: &str| std::fs::read_to_string(path).ok();
    let allowed = parse_allowed(&read("/proc/self/status")?)?;
    let performance = read("/sys/devices/cpu_core/cpus").and_then(|list| parse_list(&list));
    let describe = |&cpu: &usize| {
        let folder = format!("/sys/devices/system/cpu/cpu{cpu}");
        Some(Cpu {
            siblings: parse_list(&read(&format!("{folder}/topology/thread_siblings_list"))?)?,
            capacity: read(&format!("{folder}/cpu_capacity")).and_then(|text| text.trim().parse().ok()),
            performance: performance.as_ref().is_none_or(|list| list.contains(&cpu)),
        })
    };
    allowed.iter().map(describe).collect()
}

/// Distinct cores among the performance CPUs: those of the hybrid's fast kind, and at least half as fast
/// as the fastest. All are counted if none is of the fast kind.
fn count_cores(cpus: &[Cpu]) -> usize {
    let any_fast = cpus.iter().any(|cpu| cpu.performance);
    let kept = cpus.iter().filter(|cpu| cpu.performance || !any_fast);
    let fastest = kept.clone().filter_map(|cpu| cpu.capacity).max().unwrap_or(0);
    let fast = kept.filter(|cpu| cpu.capacity.is_none_or(|capacity| u64::from(capacity) * 2 >= u64::from(fastest)));
    let mut cores: Vec<&[usize]> = fast.map(|cpu| cpu.siblings.as_slice()).collect();
    cores.sort_unstable();
    cores.dedup();
    cores.len()
}

/// The affinity mask in `/proc/self/status`.
fn parse_allowed(status: &str) -> Option<Vec<usize>> {
    status.lines().find_map(|line| parse_list(line.strip_prefix("Cpus_allowed_list:")?))
}

/// Linux's list format, such as `0-3,8`. None if it is malformed, empty or longer than any machine's.
fn parse_list(text: &str) -> Option<Vec<usize>> {
    const MOST: usize = 8192;
    let mut list = Vec::new();
    for part in text.trim().split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
        if first > last || last >= MOST {
            return None;
        }
        list.extend(first..=last);
    }
    (list.len() <= MOST).then_some(list)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cpu(siblings: &[usize], capacity: Option<u32>, performance: bool) -> Cpu {
        Cpu { siblings: siblings.to_vec(), capacity, performance }
    }

    #[test]
    fn lists_are_read() {
        assert_eq!(parse_list("0-3,8\n"), Some(vec![0, 1, 2, 3, 8]));
        assert_eq!(parse_list("5"), Some(vec![5]));
        for bad in ["", "3-1", "a", "1,", "0-99999999999", "0-18446744073709551615", "-1"] {
            assert_eq!(parse_list(bad), None, "{bad}");
        }
        assert_eq!(parse_allowed("Name:\tx\nCpus_allowed:\t5\nCpus_allowed_list:\t0,2\n"), Some(vec![0, 2]));
        assert_eq!(parse_allowed("Name:\tx\n"), None);
    }

    #[test]
    fn the_model_is_read() {
        assert_eq!(parse_model("processor\t: 0\nmodel name\t: Some CPU @ 2: x\n"), Some("Some CPU @ 2: x"));
        assert_eq!(parse_model("processor : 0\nmodel name :\n"), None);
        assert!(!cpu_name().is_empty());
    }

    #[test]
    fn hyper_threads_count_once() {
        let pairs: Vec<Cpu> = (0..8).map(|i| cpu(&[i % 4, i % 4 + 4], None, true)).collect();
        assert_eq!(count_cores(&pairs), 4);
        // One thread of each of two cores is allowed.
        assert_eq!(count_cores(&pairs[..2]), 2);
    }

    #[test]
    fn efficiency_cores_do_not_count() {
        let mut hybrid: Vec<Cpu> = (0..4).map(|i| cpu(&[i / 2 * 2, i / 2 * 2 + 1], None, true)).collect();
        hybrid.extend((4..12).map(|i| cpu(&[i], None, false)));
        assert_eq!(count_cores(&hybrid), 2);
        // Bound to efficiency cores only.
        assert_eq!(count_cores(&hybrid[4..]), 8);
        // One prime, three big, four little.
        let capacities = [1024, 900, 900, 900, 250, 250, 250, 250];
        let arm: Vec<Cpu> = (0..8).map(|i| cpu(&[i], Some(capacities[i]), true)).collect();
        assert_eq!(count_cores(&arm), 4);
        assert_eq!(count_cores(&[]), 0);
    }

    #[test]
    fn this_machine_has_a_core() {
        assert!(performance_cores() >= 1);
    }
}
