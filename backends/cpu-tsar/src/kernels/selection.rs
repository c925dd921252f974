//! Which kernels multiply with a matrix, and why.

use trine_backend::{Choice, Error, Format, Result};

use super::{Family, KernelInfo, Run, kernels, sweep_for, tsar};
use crate::isa::Isa;
use crate::weights::TILE;

/// What the choice is made from: an instruction set and, if a user named it, a kernel.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Selection {
    isa: Isa,
    wanted: Option<&'static KernelInfo>,
}

impl Selection {
    /// Errors if the instruction set has no kernel of that name; the line lists those that it has.
    pub(crate) fn new(isa: Isa, kernel: Option<&str>) -> Result<Self> {
        let find = |name: &str| {
            all(isa).find(|kernel| kernel.name == name).ok_or_else(|| {
                let names: Vec<_> = all(isa).map(|kernel| kernel.name).collect();
                Error::Invalid(format!("'{name}' is no kernel that runs here: {isa} has {}", names.join(", ")))
            })
        };
        Ok(Selection { isa, wanted: kernel.map(find).transpose()? })
    }

    /// The instruction set.
    pub(crate) fn isa(&self) -> Isa {
        self.isa
    }

    /// The name of the kernel that was asked for.
    pub(crate) fn wanted(&self) -> Option<&'static str> {
        self.wanted.map(|kernel| kernel.name)
    }

    /// The kernels for a format: all of them, or if one was asked for that multiplies it, that one and what is left for
    /// the tiles and tokens that it is too large for.
    pub(crate) fn kernels(&self, format: Format) -> Kernels {
        let family = Family::from(format);
        let table = kernels(self.isa, family);
        let Some(wanted) = self.wanted.filter(|wanted| wanted.family == family) else {
            return Kernels { table, only: false };
        };
        match table.iter().position(|kernel| kernel.name == wanted.name) {
            Some(start) => Kernels { table: &table[start..], only: true },
            None => Kernels { table: std::slice::from_ref(wanted), only: true },
        }
    }

    /// How `tokens` tokens are multiplied with a matrix of `rows` outputs, and which kernels that could have done it were
    /// not taken: see [`trine_backend::Backend::explain`].
    pub(crate) fn explain(&self, rows: usize, columns: usize, format: Format, tokens: usize) -> Vec<Choice> {
        let kernels = self.kernels(format);
        let mut choices = kernels.choices(rows, columns, tokens);
        let family = Family::from(format);
        let others = Isa::ALL.into_iter().filter(|&isa| isa != self.isa && !isa.is_available());
        let lacking = others.flat_map(|isa| {
            let table = kernels_of(isa, family);
            table.map(move |kernel| (kernel, format!("this CPU has no {isa} instructions")))
        });
        let named = tsar::kernels(self.isa).iter().filter(|kernel| kernel.family == family);
        let named = named.map(|kernel| (kernel, format!("only if asked for by name; {}", kernel.reason)));
        for (kernel, reason) in lacking.chain(named) {
            let taken = |choice: &Choice| choice.kernel == kernel.name;
            if !choices.iter().any(taken) {
                choices.push(choice(kernel, columns, 0, kernel.cycles, reason));
            }
        }
        choices
    }
}

/// All kernels that run on an instruction set.
fn all(isa: Isa) -> impl Iterator<Item = &'static KernelInfo> {
    Family::ALL.into_iter().flat_map(move |family| kernels(isa, family)).chain(tsar::kernels(isa))
}

/// The kernels that an instruction set has of its own for a family.
fn kernels_of(isa: Isa, family: Family) -> impl Iterator<Item = &'static KernelInfo> {
    kernels(isa, family).iter().filter(move |kernel| kernel.isa == isa)
}

/// The kernels of a matrix, the largest first.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Kernels {
    pub(crate) table: &'static [KernelInfo],
    /// Whether the first was asked for by name.
    only: bool,
}

impl Kernels {
    /// The variant of T-SAR, which has a layout of its own, if they are one.
    pub(crate) fn published(&self) -> Option<tsar::Variant> {
        match self.table[0].run {
            Run::Published(variant) => Some(variant),
            Run::Tiles(_) | Run::Sweep(_) => None,
        }
    }

    /// How many of `tokens` a sweep takes, and which: as many as are best given to it, or all if it was asked for.
    pub(crate) fn sweep(&self, tokens: usize) -> Option<(&'static KernelInfo, usize)> {
        if self.only && self.table[0].is_sweep() {
            return (tokens > 0).then_some((&self.table[0], tokens));
        }
        sweep_for(self.table, tokens)
    }

    /// The first kernel that is not larger than what is left and no sweep.
    pub(crate) fn tile(&self, tiles: usize, tokens: usize) -> &'static KernelInfo {
        let fits = |kernel: &&KernelInfo| !kernel.is_sweep() && kernel.tiles <= tiles && kernel.tokens <= tokens;
        self.table.iter().find(fits).expect("the last kernel takes one tile and one token")
    }

    /// The same where `before` was the answer for at least as many tiles and tokens: it is again if it still fits.
    pub(crate) fn still(&self, before: &'static KernelInfo, tiles: usize, tokens: usize) -> &'static KernelInfo {
        match before.tiles <= tiles && before.tokens <= tokens {
            true => before,
            false => self.tile(tiles, tokens),
        }
    }

    /// The kernels of a product, with the tokens that each takes.
    fn choices(&self, rows: usize, columns: usize, tokens: usize) -> Vec<Choice> {
        let part =
            |kernel: &KernelInfo, tokens, cycles| choice(kernel, columns, tokens, cycles, kernel.reason.to_owned());
        if self.published().is_some() {
            return vec![part(&self.table[0], tokens, self.table[0].cycles)];
        }
        let mut choices: Vec<Choice> = Vec::new();
        let mut left = tokens;
        if let Some((kernel, swept)) = self.sweep(tokens) {
            choices.push(part(kernel, swept, kernel.cost(swept)));
            left -= swept;
        }
        while left > 0 {
            let kernel = self.tile(rows.div_ceil(TILE), left);
            let taken = left / kernel.tokens * kernel.tokens;
            choices.push(part(kernel, taken, kernel.cycles));
            left -= taken;
        }
        choices
    }
}

fn choice(kernel: &KernelInfo, columns: usize, tokens: usize, cycles: f64, reason: String) -> Choice {
    let layout = match kernel.run {
        Run::Published(variant) => variant.layout(TILE, columns).map_or_else(String::new, |layout| layout.name()),
        Run::Tiles(_) | Run::Sweep(_) => format!("tiles of {TILE} rows"),
    };
    Choice { kernel: kernel.name.into(), layout, tokens, cycles: Some(cycles), reason }
}

#[cfg(test)]
mod tests {
    use trine_backend::{Group, ZeroKind};

    use super::*;

    const INT4: Format = Format::Int4 { group: Group::G32, zero: ZeroKind::Symmetric };

    #[test]
    fn unknown_names_list_what_there_is() {
        for isa in Isa::ALL {
            let line = Selection::new(isa, Some("fast")).unwrap_err().to_string();
            assert!(line.starts_with("'fast' is no kernel that runs here"), "{line}");
            for kernel in all(isa) {
                assert!(line.contains(kernel.name), "{line}");
                let found = Selection::new(isa, Some(kernel.name)).unwrap();
                assert_eq!(found.wanted(), Some(kernel.name));
            }
        }
        assert!(Selection::new(Isa::Plain, Some("neon-ternary-1")).is_err());
    }

    #[test]
    fn a_named_kernel_is_for_its_formats_only() {
        for isa in Isa::ALL {
            let usual = Selection::new(isa, None).unwrap();
            for kernel in all(isa) {
                let selection = Selection::new(isa, Some(kernel.name)).unwrap();
                for format in [Format::Ternary, INT4, Format::Int8 { group: Group::Row }, Format::Bf16] {
                    let table = selection.kernels(format).table;
                    if Family::from(format) == kernel.family {
                        assert_eq!(table[0].name, kernel.name);
                    } else {
                        assert_eq!(table.len(), usual.kernels(format).table.len());
                    }
                }
            }
        }
    }

    #[test]
    fn explanations_say_who_takes_all_tokens() {
        for isa in Isa::ALL {
            for kernel in [None, Some("tsar-4x4-op"), kernels(isa, Family::Ternary).first().map(|kernel| kernel.name)] {
                let selection = Selection::new(isa, kernel).unwrap();
                for tokens in [1, 2, 8, 31, 32, 33, 512] {
                    for format in [Format::Ternary, INT4, Format::F32] {
                        let choices = selection.explain(100, 256, format, tokens);
                        assert_eq!(choices.iter().map(|choice| choice.tokens).sum::<usize>(), tokens);
                        assert!(choices.iter().all(|choice| !choice.reason.is_empty() && choice.cycles > Some(0.0)));
                        let forced = format == Format::Ternary && kernel.is_some();
                        assert!(!forced || choices[0].kernel == kernel.unwrap() || tokens < 4, "{isa} {choices:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn what_was_not_taken_has_a_reason() {
        let choices = Selection::new(Isa::Plain, None).unwrap().explain(100, 256, Format::Ternary, 1);
        let idle: Vec<_> = choices.iter().filter(|choice| choice.tokens == 0).collect();
        let tsar = idle.iter().filter(|choice| choice.kernel.starts_with("tsar-"));
        assert!(tsar.clone().all(|choice| choice.reason.starts_with("only if asked for")) && tsar.count() == 4);
        let foreign = if cfg!(target_arch = "aarch64") { "avx2" } else { "neon-ternary-1" };
        let foreign = idle.iter().find(|choice| choice.kernel == foreign);
        assert!(foreign.is_none_or(|choice| choice.reason == "this CPU has no neon instructions"), "{foreign:?}");
    }

    #[test]
    fn a_sweep_that_was_asked_for_takes_every_token() {
        let isa = Isa::detect();
        if let Some(sweep) = kernels(isa, Family::Ternary).iter().find(|kernel| kernel.is_sweep()) {
            let kernels = Selection::new(isa, Some(sweep.name)).unwrap().kernels(Format::Ternary);
            assert_eq!([1, 33].map(|tokens| kernels.sweep(tokens).map(|(_, swept)| swept)), [Some(1), Some(33)]);
            let usual = Selection::new(isa, None).unwrap().kernels(Format::Ternary);
            assert!(usual.sweep(1).is_none());
        }
    }
    #[test]
    fn what_still_fits_is_what_would_be_found_again() {
        for isa in Isa::ALL {
            for format in [Format::Ternary, INT4, Format::Int8 { group: Group::G32 }, Format::Bf16] {
                let kernels = Selection::new(isa, None).unwrap().kernels(format);
                for (tiles, tokens) in (1..6).flat_map(|tiles| (1..10).map(move |tokens| (tiles, tokens))) {
                    let before = kernels.tile(tiles, tokens);
                    for (fewer, less) in (1..=tiles).flat_map(|fewer| (1..=tokens).map(move |less| (fewer, less))) {
                        assert_eq!(kernels.still(before, fewer, less).name, kernels.tile(fewer, less).name);
                    }
                }
            }
        }
    }
}
