//! How much energy the machine takes: counters of Intel's and AMD's processors (RAPL), power sensors of NVIDIA's
//! Jetson boards (INA3221).
//!
//! Both see whole parts of the machine, whatever runs there, and idle parts too. RAPL counts the processor packages,
//! and their memory where that has a counter of its own; a Jetson's sensors see the module.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// Pause between two looks at a power sensor, which takes a few milliseconds to measure.
const INTERVAL: Duration = Duration::from_millis(10);

/// The rail that carries all that a module takes, where there is one (Jetson Orin NX, Orin Nano, Xavier NX).
const INPUT_RAILS: [&str; 2] = ["VDD_IN", "5V_IN"];

/// The rails that together carry it on a Jetson AGX Orin. Its fourth, VDDQ_VDD2_1V8AO, is fed by VIN_SYS_5V0.
const MODULE_RAILS: [&str; 3] = ["VDD_GPU_SOC", "VDD_CPU_CV", "VIN_SYS_5V0"];

/// What can't be measured, and why: one line.
type Result<T> = std::result::Result<T, String>;

/// Something that tells energy.
#[derive(Clone, Debug)]
pub struct Meter(Source);

#[derive(Clone, Debug)]
enum Source {
    Rapl(Vec<Counter>),
    Ina3221(Arc<[Rail]>),
}

impl Meter {
    /// The machine's own.
    ///
    /// # Errors
    /// It has none that this program may read; the line says why.
    pub fn open() -> Result<Self> {
        Self::open_in(Path::new("/sys"))
    }

    /// That of a machine whose sysfs is mounted at `sys`.
    ///
    /// # Errors
    /// As [`Meter::open`].
    pub fn open_in(sys: &Path) -> Result<Self> {
        let (hwmon, powercap) = (sys.join("class/hwmon"), sys.join("class/powercap"));
        if let Some(rails) = module_rails(&hwmon) {
            let meter = Meter(Source::Ina3221(rails.into()));
            meter.start()?.stop()?;
            return Ok(meter);
        }
        let counters: Vec<_> = folders(&powercap).into_iter().filter_map(Counter::of).collect();
        if counters.is_empty() {
            let (hwmon, powercap) = (hwmon.display(), powercap.display());
            return Err(format!("no intel-rapl counter in {powercap} and no ina3221 sensor of a module in {hwmon}"));
        }
        counters.iter().try_for_each(|counter| counter.read().map(drop))?;
        Ok(Meter(Source::Rapl(counters)))
    }

    /// What it sees.
    pub fn name(&self) -> &'static str {
        match &self.0 {
            Source::Rapl(_) => "processor packages and their memory (RAPL)",
            Source::Ina3221(_) => "the module (INA3221)",
        }
    }

    /// Begins to measure.
    ///
    /// # Errors
    /// A counter that could be read no longer can.
    pub fn start(&self) -> Result<Running> {
        Ok(Running(match &self.0 {
            Source::Rapl(counters) => {
                let start = |counter: &Counter| Ok((counter.clone(), counter.read()?));
                State::Counting(counters.iter().map(start).collect::<Result<_>>()?)
            }
            Source::Ina3221(rails) => {
                let (rails, stop) = (Arc::clone(rails), Arc::new(AtomicBool::new(false)));
                let (stopped, first) = (Arc::clone(&stop), Look::at(&rails)?);
                State::Sampling(thread::spawn(move || integrate(first, &rails, &stopped)), stop)
            }
        }))
    }
}

/// A measurement that has begun.
#[derive(Debug)]
pub struct Running(State);

#[derive(Debug)]
enum State {
    /// Where the counters stood.
    Counting(Vec<(Counter, u64)>),
    /// A thread that adds up joules until it is told to stop.
    Sampling(JoinHandle<Result<f64>>, Arc<AtomicBool>),
}

impl Running {
    /// Ends the measurement: the joules since it began.
    ///
    /// # Errors
    /// A counter or sensor could not be read.
    pub fn stop(self) -> Result<f64> {
        match self.0 {
            State::Counting(counters) => {
                let used = |(counter, start): &(Counter, u64)| counter.since(*start);
                counters.iter().map(used).sum()
            }
            State::Sampling(sampler, stop) => {
                stop.store(true, Ordering::Relaxed);
                sampler.thread().unpark();
                sampler.join().unwrap_or_else(|_| Err("the thread that reads the sensors failed".into()))
            }
        }
    }
}

/// A RAPL zone.
#[derive(Clone, Debug)]
struct Counter {
    /// Counts µJ.
    path: PathBuf,
    /// It begins again at 0 above this.
    range: Option<u64>,
}

impl Counter {
    /// The zone in `folder`, if it is a package's or a memory's. What cores and graphics take is a part of the
    /// package's, and the platform's contains it.
    fn of(folder: PathBuf) -> Option<Self> {
        // The same packages appear once more as intel-rapl-mmio.
        folder.file_name()?.to_str()?.strip_prefix("intel-rapl:")?;
        let name = text(&folder.join("name"))?;
        let range = text(&folder.join("max_energy_range_uj")).and_then(|range| range.parse().ok());
        let counted = name.starts_with("package") || name == "dram";
        counted.then(|| Counter { path: folder.join("energy_uj"), range })
    }

    fn read(&self) -> Result<u64> {
        let path = self.path.display();
        let text = fs::read_to_string(&self.path).map_err(|error| match error.kind() {
            std::io::ErrorKind::PermissionDenied => {
                format!("{path} may not be read: run as root, or let root allow it (chmod a+r)")
            }
            _ => format!("{path}: {error}"),
        })?;
        text.trim().parse().map_err(|_| format!("{path} holds '{}', which is no number", text.trim()))
    }

    /// Joules since it stood at `start`; it may have begun again once.
    fn since(&self, start: u64) -> Result<f64> {
        let now = self.read()?;
        let used = match now.checked_sub(start) {
            Some(used) => used,
            None => self
                .range
                .and_then(|range| Some(range.checked_sub(start)?.saturating_add(now)))
                .ok_or_else(|| format!("{} went from {start} back to {now}", self.path.display()))?,
        };
        Ok(used as f64 / 1e6)
    }
}

/// A channel of an INA3221.
#[derive(Clone, Debug)]
struct Rail {
    label: String,
    /// Reads mV.
    voltage: PathBuf,
    /// Reads mA.
    current: PathBuf,
}

impl Rail {
    /// Watts.
    fn power(&self) -> Result<f64> {
        let read = |path: &Path| {
            let value = text(path).and_then(|text| text.parse::<i64>().ok());
            value.ok_or_else(|| format!("{} can't be read", path.display()))
        };
        Ok(read(&self.voltage)? as f64 * read(&self.current)? as f64 / 1e6)
    }
}

/// The rails whose sum is what a module takes; `None` where no sensor or another board's is found.
fn module_rails(hwmon: &Path) -> Option<Vec<Rail>> {
    let sensors = folders(hwmon).into_iter().filter(|folder| text(&folder.join("name")).as_deref() == Some("ina3221"));
    let channel = |folder: &Path, n: usize| {
        let file = |name: String| folder.join(name);
        let label = text(&file(format!("in{n}_label")))?;
        Some(Rail { label, voltage: file(format!("in{n}_input")), current: file(format!("curr{n}_input")) })
    };
    let rails: Vec<Rail> =
        sensors.flat_map(|folder| (1..=3).filter_map(|n| channel(&folder, n)).collect::<Vec<_>>()).collect();
    if let Some(input) = rails.iter().find(|rail| INPUT_RAILS.contains(&rail.label.as_str())) {
        return Some(vec![input.clone()]);
    }
    MODULE_RAILS.iter().map(|label| rails.iter().find(|rail| rail.label == *label).cloned()).collect()
}

/// Power at a time.
#[derive(Clone, Copy, Debug)]
struct Look {
    time: Instant,
    watts: f64,
}

impl Look {
    /// At all rails, now.
    fn at(rails: &[Rail]) -> Result<Self> {
        Ok(Look { time: Instant::now(), watts: rails.iter().map(Rail::power).sum::<Result<f64>>()? })
    }
}

/// Joules from the first look until `stop`, by the trapezoidal rule.
fn integrate(mut before: Look, rails: &[Rail], stop: &AtomicBool) -> Result<f64> {
    let mut joules = 0.0;
    loop {
        let last = stop.load(Ordering::Relaxed);
        let now = Look::at(rails)?;
        joules += (now.time - before.time).as_secs_f64() * (before.watts + now.watts) / 2.0;
        before = now;
        if last {
            return Ok(joules);
        }
        thread::park_timeout(INTERVAL);
    }
}

/// What is in a folder, sorted; nothing if there is none.
fn folders(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut paths: Vec<_> = entries.map(|entry| entry.path()).collect();
    paths.sort();
    paths
}

/// A file's text without the white space around it.
fn text(path: &Path) -> Option<String> {
    Some(fs::read_to_string(path).ok()?.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A sysfs with these files.
    fn sysfs(files: &[(&str, &str)]) -> tempfile::TempDir {
        let sys = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = sys.path().join("class").join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, format!("{text}\n")).unwrap();
        }
        sys
    }

    fn set(sys: &tempfile::TempDir, path: &str, text: &str) {
        fs::write(sys.path().join("class").join(path), text).unwrap();
    }

    const RAPL: [(&str, &str); 16] = [
        ("powercap/intel-rapl/enabled", "1"),
        ("powercap/intel-rapl:0/name", "package-0"),
        ("powercap/intel-rapl:0/energy_uj", "1000000"),
        ("powercap/intel-rapl:0/max_energy_range_uj", "262143328850"),
        ("powercap/intel-rapl:0:0/name", "core"),
        ("powercap/intel-rapl:0:0/energy_uj", "5"),
        ("powercap/intel-rapl:0:1/name", "dram"),
        ("powercap/intel-rapl:0:1/energy_uj", "65000000000"),
        ("powercap/intel-rapl:0:1/max_energy_range_uj", "65532610987"),
        ("powercap/intel-rapl:1/name", "psys"),
        ("powercap/intel-rapl:1/energy_uj", "5"),
        ("powercap/intel-rapl-mmio:0/name", "package-0"),
        ("powercap/intel-rapl-mmio:0/energy_uj", "5"),
        ("powercap/intel-rapl:2/name", "package-1"),
        ("powercap/intel-rapl:2/energy_uj", "0"),
        ("powercap/intel-rapl:2/max_energy_range_uj", "262143328850"),
    ];

    #[test]
    fn packages_and_memory_are_added() {
        let sys = sysfs(&RAPL);
        let meter = Meter::open_in(sys.path()).unwrap();
        let running = meter.start().unwrap();
        set(&sys, "powercap/intel-rapl:0/energy_uj", "3500000\n");
        set(&sys, "powercap/intel-rapl:2/energy_uj", "250000\n");
        // The memory's counter began again.
        set(&sys, "powercap/intel-rapl:0:1/energy_uj", "67389013\n");
        for ignored in ["intel-rapl:0:0", "intel-rapl:1", "intel-rapl-mmio:0"] {
            set(&sys, &format!("powercap/{ignored}/energy_uj"), "9000000\n");
        }
        let joules = running.stop().unwrap();
        assert!((joules - (2.5 + 0.25 + 600.0)).abs() < 1e-9, "{joules}");
        assert!(meter.name().contains("RAPL"));
    }

    #[test]
    fn counters_that_say_nothing_are_errors() {
        let sys = sysfs(&RAPL);
        set(&sys, "powercap/intel-rapl:0/energy_uj", "lots");
        let line = Meter::open_in(sys.path()).unwrap_err();
        assert!(line.ends_with("intel-rapl:0/energy_uj holds 'lots', which is no number"), "{line}");
        // One that goes back without a range.
        let zone = [("powercap/intel-rapl:0/name", "package-0"), ("powercap/intel-rapl:0/energy_uj", "7")];
        let sys = sysfs(&zone);
        let running = Meter::open_in(sys.path()).unwrap().start().unwrap();
        set(&sys, "powercap/intel-rapl:0/energy_uj", "6");
        let line = running.stop().unwrap_err();
        assert!(line.ends_with("went from 7 back to 6"), "{line}");
        fs::remove_file(sys.path().join("class/powercap/intel-rapl:0/energy_uj")).unwrap();
        assert!(Meter::open_in(sys.path()).unwrap_err().contains("intel-rapl:0/energy_uj: "));
    }

    #[test]
    fn a_machine_without_counters_says_so() {
        let sys = sysfs(&[("hwmon/hwmon0/name", "coretemp"), ("powercap/dtpm/name", "package")]);
        let line = Meter::open_in(sys.path()).unwrap_err();
        assert!(line.contains("no intel-rapl counter in") && line.contains("no ina3221 sensor"), "{line}");
        assert!(Meter::open_in(Path::new("/nowhere")).is_err());
    }

    const ORIN_NX: [(&str, &str); 7] = [
        ("hwmon/hwmon3/name", "ina3221"),
        ("hwmon/hwmon3/in1_label", "VDD_IN"),
        ("hwmon/hwmon3/in1_input", "5000"),
        ("hwmon/hwmon3/curr1_input", "2000"),
        ("hwmon/hwmon3/in2_label", "VDD_CPU_GPU_CV"),
        ("hwmon/hwmon3/in2_input", "5000"),
        ("hwmon/hwmon3/curr2_input", "1000"),
    ];

    const AGX_ORIN: [(&str, &str); 14] = [
        ("hwmon/hwmon3/name", "ina3221"),
        ("hwmon/hwmon3/in1_label", "VDD_GPU_SOC"),
        ("hwmon/hwmon3/in1_input", "1000"),
        ("hwmon/hwmon3/curr1_input", "6000"),
        ("hwmon/hwmon3/in2_label", "VDD_CPU_CV"),
        ("hwmon/hwmon3/in2_input", "1000"),
        ("hwmon/hwmon3/curr2_input", "3000"),
        ("hwmon/hwmon3/in3_label", "VIN_SYS_5V0"),
        ("hwmon/hwmon3/in3_input", "5000"),
        ("hwmon/hwmon3/curr3_input", "1000"),
        ("hwmon/hwmon4/name", "ina3221"),
        ("hwmon/hwmon4/in2_label", "VDDQ_VDD2_1V8AO"),
        ("hwmon/hwmon4/in2_input", "1800"),
        ("hwmon/hwmon4/curr2_input", "341"),
    ];

    #[test]
    fn a_modules_power_is_added_up_over_time() {
        for (files, expected) in [(&ORIN_NX[..], 10.0), (&AGX_ORIN, 14.0)] {
            let sys = sysfs(files);
            let meter = Meter::open_in(sys.path()).unwrap();
            let outer = Instant::now();
            let running = meter.start().unwrap();
            let inner = Instant::now();
            thread::sleep(Duration::from_millis(50));
            let least = expected * inner.elapsed().as_secs_f64();
            let joules = running.stop().unwrap();
            let most = expected * outer.elapsed().as_secs_f64();
            assert!(least <= joules && joules <= most, "{joules} J, where it is {least} to {most}");
            assert!(meter.name().contains("INA3221"));
        }
    }

    #[test]
    fn sensors_of_other_boards_are_not_taken_for_a_module() {
        assert!(Meter::open_in(sysfs(&AGX_ORIN[..7]).path()).is_err(), "a rail is missing");
        let sys = sysfs(&ORIN_NX);
        set(&sys, "hwmon/hwmon3/curr1_input", "");
        let line = Meter::open_in(sys.path()).unwrap_err();
        assert!(line.ends_with("curr1_input can't be read"), "{line}");
    }
}
