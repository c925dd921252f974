//! `trine doctor --kernels`: which kernels multiply with a model's matrices, what they cost, and why them.

use serde_json::{Value, json};
use trine_backend::{Backend, Choice};

use super::Exit;
use super::args::DoctorArgs;
use super::output::{print, print_json};
use crate::Result;
use crate::model::{Product, products};

/// The numbers of tokens that are shown: decode, small batches, prefill.
const TOKENS: [usize; 4] = [1, 8, 32, 512];

/// Runs the subcommand; no weight is loaded.
///
/// # Errors
/// The backend can't be opened, or the model's files are unsound.
pub(super) fn run<B: Backend>(device: &B::Options, args: &DoctorArgs) -> Result<Exit> {
    let backend = B::open(device)?;
    let files = args.model.open()?;
    let matrices: Vec<Matrix> = products(&files.config, &files.checkpoint, &args.formats.engine().formats)?
        .into_iter()
        .map(|product| Matrix::new(&backend, product))
        .collect();
    if args.json {
        print_json(&matrices.iter().map(Matrix::json).collect())?;
    } else {
        print(&text(B::NAME, &matrices))?;
    }
    Ok(Exit::Success)
}

/// A matrix with the choices for each of [`TOKENS`].
struct Matrix {
    product: Product,
    choices: Vec<(usize, Vec<Choice>)>,
}

impl Matrix {
    fn new<B: Backend>(backend: &B, product: Product) -> Self {
        let explain = |tokens| backend.explain(product.rows, product.columns, product.format, tokens);
        let choices = TOKENS.map(|tokens| (tokens, explain(tokens))).into();
        Matrix { product, choices }
    }

    /// The kernels that take no part with any number of tokens.
    fn idle(&self) -> Vec<&Choice> {
        let all = || self.choices.iter().flat_map(|(_, choices)| choices);
        let is_idle = |choice: &&Choice| all().all(|other| other.kernel != choice.kernel || other.tokens == 0);
        let mut idle: Vec<&Choice> = Vec::new();
        for choice in all().filter(is_idle) {
            if !idle.iter().any(|other| other.kernel == choice.kernel) {
                idle.push(choice);
            }
        }
        idle
    }

    fn json(&self) -> Value {
        let Product { name, rows, columns, format, count } = &self.product;
        let choice = |choice: &Choice| {
            json!({
                "kernel": choice.kernel, "layout": choice.layout, "tokens": choice.tokens,
                "cycles": choice.cycles, "reason": choice.reason,
            })
        };
        let taken =
            |choices: &[Choice]| choices.iter().filter(|choice| choice.tokens > 0).map(choice).collect::<Value>();
        json!({
            "matrix": name, "rows": rows, "columns": columns, "format": format.to_string(), "count": count,
            "products": self.choices.iter()
                .map(|(tokens, choices)| json!({ "tokens": tokens, "kernels": taken(choices) }))
                .collect::<Value>(),
            "not_taken": self.idle().into_iter()
                .map(|choice| json!({ "kernel": choice.kernel, "reason": choice.reason }))
                .collect::<Value>(),
        })
    }
}

fn cycles(choice: &Choice) -> String {
    choice.cycles.map_or(String::new(), |cycles| format!("{cycles:>6.1} cycles  "))
}

/// Matrices, then the kernels that no matrix has taken, each once.
fn text(backend: &str, matrices: &[Matrix]) -> String {
    if matrices.iter().all(|matrix| matrix.choices.iter().all(|(_, choices)| choices.is_empty())) {
        return format!("{backend} has one kernel for each format and no choice\n");
    }
    let mut text = String::new();
    if matrices.iter().flat_map(|matrix| &matrix.choices).flat_map(|(_, all)| all).any(|choice| choice.cycles.is_some())
    {
        text += "cycles are those of a core for 256 multiply-adds, with the weights in its cache\n";
    }
    for matrix in matrices {
        let Product { name, rows, columns, format, count } = &matrix.product;
        let times = if *count == 1 { String::new() } else { format!(", {count} times") };
        text += &format!("\n{name}: {format} {rows} x {columns}{times}\n");
        for (tokens, choices) in &matrix.choices {
            for (at, choice) in choices.iter().filter(|choice| choice.tokens > 0).enumerate() {
                let tokens = if at == 0 { tokens.to_string() } else { String::new() };
                let part = if choice.tokens.to_string() == tokens { String::new() } else { choice.tokens.to_string() };
                let Choice { kernel, layout, reason, .. } = choice;
                text += &format!("{tokens:>5} {part:>4}  {kernel:<20} {}{layout}; {reason}\n", cycles(choice));
            }
        }
    }
    let mut shown: Vec<&str> = Vec::new();
    for choice in matrices.iter().flat_map(Matrix::idle) {
        if !shown.contains(&choice.kernel.as_str()) {
            if shown.is_empty() {
                text += "\nnot taken\n";
            }
            shown.push(&choice.kernel);
            text += &format!("{:<22} {}{}\n", choice.kernel, cycles(choice), choice.reason);
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use trine_backend::Format;

    use super::*;

    fn choice(kernel: &str, tokens: usize) -> Choice {
        Choice { kernel: kernel.into(), layout: "tiles".into(), tokens, cycles: Some(9.5), reason: "why".into() }
    }

    fn matrix(choices: Vec<(usize, Vec<Choice>)>) -> Matrix {
        let product = Product { name: "q|k".into(), rows: 8, columns: 4, format: Format::Ternary, count: 3 };
        Matrix { product, choices }
    }

    #[test]
    fn a_kernel_is_idle_that_takes_no_part_anywhere() {
        let decode = vec![choice("small", 1), choice("large", 0), choice("foreign", 0)];
        let prefill = vec![choice("large", 32), choice("small", 1), choice("foreign", 0)];
        let matrix = matrix(vec![(1, decode), (33, prefill)]);
        assert_eq!(matrix.idle().iter().map(|choice| &choice.kernel).collect::<Vec<_>>(), ["foreign"]);
        let text = text("cpu", &[matrix]);
        assert!(text.contains("q|k: ternary 8 x 4, 3 times"), "{text}");
        assert!(text.contains("    1       small                   9.5 cycles  tiles; why"), "{text}");
        assert!(text.contains("   33   32  large") && text.contains("         1  small"), "{text}");
        assert_eq!(text.matches("foreign").count(), 1, "{text}");
    }

    #[test]
    fn a_device_that_counts_no_cycles_tells_none() {
        let large = Choice { cycles: None, ..choice("large", 8) };
        let text = text("gpu", &[matrix(vec![(8, vec![large])])]);
        assert!(text.contains("    8       large                tiles; why") && !text.contains("cycles"), "{text}");
    }

    #[test]
    fn a_device_without_a_choice_says_so() {
        assert_eq!(text("gpu", &[matrix(vec![(1, vec![])])]), "gpu has one kernel for each format and no choice\n");
    }
}
