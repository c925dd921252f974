//! Which instructions and how many threads to use.

use std::fmt;
use std::str::FromStr;

use pulp::NullaryFnOnce;
use trine_backend::{Error, Result};

use crate::kernels::Selection;
use crate::topology;

/// How the CPU backend runs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Threads for steps of one row; by default one for each physical performance core.
    pub threads: Option<usize>,
    /// Threads for steps of more rows; by default as many as for one row.
    pub threads_batch: Option<usize>,
    /// Instruction set; by default the best that the CPU has.
    pub isa: Option<Isa>,
    /// Kernel by its name for the matrices whose format it multiplies; by default the best for each matrix and number of
    /// tokens.
    pub kernel: Option<String>,
}

impl Options {
    /// Threads for steps of one row, and of more.
    pub(crate) fn threads(&self) -> (usize, usize) {
        let single = self.threads.unwrap_or_else(topology::performance_cores);
        (single, self.threads_batch.unwrap_or(single))
    }

    /// Whether this CPU has what is asked for, before anything is started.
    ///
    /// # Errors
    /// It lacks the instruction set, or that has no such kernel: the line says what there is.
    pub fn check(&self) -> Result<()> {
        self.selection().map(drop)
    }

    /// The kernels to choose from. Errors if the CPU lacks the instruction set or that has no such kernel.
    pub(crate) fn selection(&self) -> Result<Selection> {
        Selection::new(self.isa()?, self.kernel.as_deref())
    }

    /// The instruction set, known to be there. Errors if the CPU lacks the one that was asked for.
    fn isa(&self) -> Result<Isa> {
        match self.isa {
            None => Ok(Isa::detect()),
            Some(isa) if isa.is_available() => Ok(isa),
            Some(isa) => {
                let best = Isa::detect();
                Err(Error::Unsupported(format!(
                    "this CPU has no {isa} instructions: '{best}' is the best that it can do"
                )))
            }
        }
    }
}

/// An instruction set that kernels are written for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Isa {
    /// Whatever the compiler's target has: runs everywhere.
    Plain,
    /// x86-64-v3: AVX2, FMA, BMI and what comes with them (Intel since Haswell, AMD since Zen).
    Avx2,
    /// x86-64-v3 and AVX-VNNI: products of bytes in one instruction (Intel's hybrid CPUs since Alder Lake).
    AvxVnni,
    /// x86-64-v4 and AVX-512 VNNI (AMD since Zen 4, Intel servers).
    Avx512,
    /// aarch64's Advanced SIMD.
    Neon,
}

impl Isa {
    /// All of them, the best last.
    pub const ALL: [Isa; 5] = [Isa::Plain, Isa::Avx2, Isa::AvxVnni, Isa::Avx512, Isa::Neon];

    /// The best that this CPU has.
    pub fn detect() -> Self {
        Isa::ALL.into_iter().rfind(|isa| isa.is_available()).unwrap_or(Isa::Plain)
    }

    /// Whether this CPU has it.
    pub fn is_available(self) -> bool {
        match self {
            Isa::Plain => true,
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => pulp::x86::V3::is_available(),
            #[cfg(target_arch = "x86_64")]
            Isa::AvxVnni | Isa::Avx512 => crate::kernels::has_vnni(self),
            #[cfg(target_arch = "aarch64")]
            Isa::Neon => pulp::aarch64::Neon::is_available(),
            #[allow(unreachable_patterns)] // Every architecture lacks another one.
            _ => false,
        }
    }

    /// Runs `op` compiled for this instruction set. What `op` calls must be `#[inline(always)]` to be
    /// compiled so too. (aarch64 always has NEON: the compiler uses it in plain code.)
    #[inline(always)]
    pub(crate) fn vectorize<Op: NullaryFnOnce>(self, op: Op) -> Op::Output {
        #[cfg(target_arch = "x86_64")]
        if let (Isa::Avx2 | Isa::AvxVnni | Isa::Avx512, Some(simd)) = (self, pulp::x86::V3::try_new()) {
            return simd.vectorize(op);
        }
        op.call()
    }
}

impl fmt::Display for Isa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Isa::Plain => "plain",
            Isa::Avx2 => "avx2",
            Isa::AvxVnni => "avx-vnni",
            Isa::Avx512 => "avx512",
            Isa::Neon => "neon",
        })
    }
}

impl FromStr for Isa {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        let found = Isa::ALL.into_iter().find(|isa| isa.to_string() == name);
        found.ok_or_else(|| {
            Error::Invalid(format!("'{name}' is no instruction set: it is one of plain, avx2, avx-vnni, avx512, neon"))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back() {
        for isa in Isa::ALL {
            assert_eq!(isa.to_string().parse::<Isa>().unwrap(), isa);
        }
        assert!("sse2".parse::<Isa>().unwrap_err().to_string().contains("plain, avx2, avx-vnni, avx512, neon"));
    }

    #[test]
    fn only_what_the_cpu_has_is_granted() {
        let granted = |isa| Options { isa: Some(isa), ..Options::default() }.isa();
        for isa in Isa::ALL {
            assert_eq!(granted(isa).is_ok(), isa.is_available());
        }
        assert_eq!(Options::default().isa().unwrap(), Isa::detect());
        let foreign = if cfg!(target_arch = "aarch64") { Isa::Avx2 } else { Isa::Neon };
        let error = granted(foreign).unwrap_err();
        assert!(matches!(&error, Error::Unsupported(line) if line.contains(&foreign.to_string())), "{error}");
    }

    #[test]
    fn options_set_the_threads() {
        assert_eq!(Options { threads: Some(3), ..Options::default() }.threads(), (3, 3));
        let options = Options { threads: Some(3), threads_batch: Some(5), ..Options::default() };
        assert_eq!(options.threads(), (3, 5));
        let most = std::thread::available_parallelism().map_or(1, usize::from);
        let (single, batch) = Options::default().threads();
        assert!((1..=most).contains(&single) && batch == single);
        assert_eq!(Options { threads_batch: Some(5), ..Options::default() }.threads(), (single, 5));
    }
}
