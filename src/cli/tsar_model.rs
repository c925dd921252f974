//! `trine tsar-model`: what T-SAR's instructions would do in hardware, as tables.

use std::num::NonZeroU32;

use serde_json::{Value, json};

use super::Exit;
use super::args::{TableOutput, TsarModelArgs};
use super::bench::csv_field;
use super::output::{print, print_json};
use crate::hub;
use crate::model::Config;
use crate::tsar_model::{Engine, Figure, Number, Phase, Report, Shapes, Source};
use crate::{Error, Result};

/// Runs the subcommand.
///
/// # Errors
/// No phase is asked for, the model's config.json is missing or wrong, or a count is over 64 bits.
pub(super) fn run(args: &TsarModelArgs) -> Result<Exit> {
    let shapes = shapes(args)?;
    let reports = phases(args)?.into_iter().map(|phase| Report::new(&shapes, phase)).collect::<Result<Vec<_>>>()?;
    match args.output {
        TableOutput::Md => print(&markdown(&reports))?,
        TableOutput::Csv => print(&csv(&reports))?,
        TableOutput::Json => print_json(&rows(&reports).into())?,
    }
    Ok(Exit::Success)
}

fn shapes(args: &TsarModelArgs) -> Result<Shapes> {
    let Some(dir) = &args.model else {
        let unknown = || Error::Usage(format!("no shape is named '{}'", args.shape));
        return Shapes::built_in(&args.shape).ok_or_else(unknown);
    };
    let dir = &hub::resolve(dir)?;
    let name = dir.file_name().unwrap_or(dir.as_os_str()).to_string_lossy();
    Ok(Shapes::from_config(&Config::load(dir)?, &name))
}

fn phases(args: &TsarModelArgs) -> Result<Vec<Phase>> {
    let prefill = NonZeroU32::new(args.n_prompt).map(Phase::Prefill);
    let decode = NonZeroU32::new(args.n_gen).map(Phase::Decode);
    let phases: Vec<_> = prefill.into_iter().chain(decode).collect();
    if phases.is_empty() {
        return Err(Error::Usage("nothing to count: give -p or -n more than 0".into()));
    }
    Ok(phases)
}

/// An object for each number.
fn rows(reports: &[Report]) -> Vec<Value> {
    let row = |report: &Report, figure: Figure| {
        json!({
            "shape": report.shape,
            "phase": report.phase.name(),
            "tokens": report.phase.tokens(),
            "engine": figure.engine.name(),
            "quantity": figure.quantity,
            "value": match figure.number {
                Number::Count(count) => json!(count),
                Number::Quotient(quotient) => json!(quotient),
            },
            "source": figure.source.name(),
            "published": figure.published,
            "deviation_percent": figure.deviation(),
        })
    };
    reports.iter().flat_map(|report| report.figures().into_iter().map(move |figure| row(report, figure))).collect()
}

/// The fields of the JSON objects.
fn csv(reports: &[Report]) -> String {
    let mut text = String::new();
    for row in rows(reports) {
        let Value::Object(fields) = row else { continue };
        if text.is_empty() {
            text = fields.keys().map(String::as_str).collect::<Vec<_>>().join(",") + "\n";
        }
        text += &(fields.values().map(csv_field).collect::<Vec<_>>().join(",") + "\n");
    }
    text
}

/// For each report a table of all numbers with a column for each engine, and one of what is published.
fn markdown(reports: &[Report]) -> String {
    let mut text = String::new();
    for report in reports {
        let figures = report.figures();
        let tokens = report.phase.tokens();
        let plural = if tokens == 1 { "" } else { "s" };
        text += &format!("## {}: {}, {tokens} token{plural}\n\n", report.shape, report.phase.name());
        text += &engines(&figures);
        if report.published.is_some() {
            text += "\n";
            text += &comparison(&figures);
        }
        text += "\n";
    }
    text + "Numbers without a mark are derived from the shapes. *_ratio*: TL-2's count divided by the engine's.\n"
}

/// A row for each quantity, in the order in which the figures have them.
fn engines(figures: &[Figure]) -> String {
    let mut quantities: Vec<&str> = Vec::new();
    for figure in figures {
        if !quantities.contains(&figure.quantity.as_str()) {
            quantities.push(&figure.quantity);
        }
    }
    let names: Vec<_> = Engine::ALL.iter().map(|engine| engine.name()).collect();
    let mut text = format!("| quantity | {} |\n|---|{}\n", names.join(" | "), "---:|".repeat(names.len()));
    for quantity in quantities {
        let cell = |engine: &Engine| {
            let figure = figures.iter().find(|figure| figure.engine == *engine && figure.quantity == quantity);
            figure.map_or_else(|| "-".into(), marked)
        };
        text += &format!("| {quantity} | {} |\n", Engine::ALL.iter().map(cell).collect::<Vec<_>>().join(" | "));
    }
    text
}

/// A row for each number that has a published one.
fn comparison(figures: &[Figure]) -> String {
    let mut text =
        "| engine | quantity | here | source | published | deviation |\n|---|---|---:|---|---:|---:|\n".to_owned();
    for figure in figures {
        let (Some(published), Some(deviation)) = (figure.published, figure.deviation()) else { continue };
        text += &format!(
            "| {} | {} | {} | {} | {} | {deviation:+.2} % |\n",
            figure.engine.name(),
            figure.quantity,
            readable(figure.number.value()),
            figure.source.name(),
            readable(published),
        );
    }
    text
}

/// The number with its source, unless that is the usual one.
fn marked(figure: &Figure) -> String {
    let number = match figure.number {
        Number::Count(count) if count < 1000 => count.to_string(),
        number => readable(number.value()),
    };
    match figure.source {
        Source::Derived => number,
        source => format!("{number} ({})", source.name()),
    }
}

/// `88.97 G`: prefixes of the SI, as requests and operations are given.
fn readable(number: f64) -> String {
    const PREFIXES: [(f64, &str); 4] = [(1e12, " T"), (1e9, " G"), (1e6, " M"), (1e3, " k")];
    let (unit, prefix) = PREFIXES.into_iter().find(|&(unit, _)| number >= unit).unwrap_or((1.0, ""));
    format!("{:.2}{prefix}", number / unit)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::super::args::{Cli, Command};
    use super::*;

    fn args(line: &str) -> TsarModelArgs {
        match Cli::try_parse_from(line.split(' ')).unwrap().command {
            Command::TsarModel(args) => args,
            other => panic!("{other:?}"),
        }
    }

    fn reports(line: &str) -> Vec<Report> {
        let args = args(line);
        let shapes = shapes(&args).unwrap();
        phases(&args).unwrap().into_iter().map(|phase| Report::new(&shapes, phase).unwrap()).collect()
    }

    #[test]
    fn the_default_is_what_was_published() {
        let reports = reports("trine tsar-model");
        let phases: Vec<_> = reports.iter().map(|report| (report.phase.name(), report.phase.tokens())).collect();
        assert_eq!(phases, [("prefill", 128), ("decode", 1)]);
        assert!(reports.iter().all(|report| report.shape == "bitnet-2b" && report.published.is_some()));
    }

    #[test]
    fn flags_choose_phases_and_shape() {
        let reports = reports("trine tsar-model --shape falcon3-10b -p 0 -n 3 -o csv");
        assert_eq!(reports.len(), 1);
        assert_eq!((reports[0].shape.as_str(), reports[0].phase.tokens()), ("falcon3-10b", 3));
        let none = phases(&args("trine tsar-model -p 0 -n 0")).unwrap_err();
        assert_eq!(none.to_string(), "nothing to count: give -p or -n more than 0");
        for bad in ["--shape gpt-5", "-m a --shape bitnet-2b", "-p -1", "-p 4294967296"] {
            assert!(Cli::try_parse_from(format!("trine tsar-model {bad}").split(' ')).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_directory_needs_no_more_than_its_configuration() {
        let dir = tempfile::tempdir().unwrap();
        let line = format!("trine tsar-model -m {}", dir.path().display());
        let error = shapes(&args(&line)).unwrap_err().to_string();
        assert!(error.contains("config.json is missing"), "{error}");
        let config = r#"{"architectures":["BitNetForCausalLM"],"vocab_size":128256,"hidden_size":2560,
            "intermediate_size":6912,"num_hidden_layers":30,"num_attention_heads":20,"num_key_value_heads":5,
            "max_position_embeddings":4096,"rms_norm_eps":1e-5,"rope_theta":500000.0,"hidden_act":"relu2"}"#;
        std::fs::write(dir.path().join("config.json"), config).unwrap();
        let shapes = shapes(&args(&line)).unwrap();
        let known = Shapes::built_in("bitnet-2b").unwrap();
        assert_eq!((shapes.layers(), shapes.matrices()), (known.layers(), known.matrices()));
        assert_eq!(shapes.name(), dir.path().file_name().unwrap().to_str().unwrap());
    }

    #[test]
    fn csv_and_json_have_the_same_numbers() {
        let reports = reports("trine tsar-model");
        let json: Value = serde_json::from_str(&format!("{:#}", Value::from(rows(&reports)))).unwrap();
        let objects = json.as_array().unwrap();
        let text = csv(&reports);
        let mut lines = text.lines().map(|line| line.split(',').collect::<Vec<_>>());
        let names = lines.next().unwrap();
        assert_eq!(
            names,
            "shape,phase,tokens,engine,quantity,value,source,published,deviation_percent"
                .split(',')
                .collect::<Vec<_>>()
        );
        let lines: Vec<_> = lines.collect();
        assert_eq!(lines.len(), objects.len());
        for (line, object) in lines.iter().zip(objects) {
            assert_eq!(line.len(), names.len(), "{line:?}");
            for (name, field) in names.iter().zip(line) {
                match &object[name] {
                    Value::Null => assert_eq!(*field, ""),
                    Value::String(text) => assert_eq!(field, text),
                    Value::Number(count) if count.is_u64() => assert_eq!(*field, count.to_string(), "{name}"),
                    // The parser of JSON may be off by a unit in the last place.
                    other => {
                        let (field, other) = (field.parse::<f64>().unwrap(), other.as_f64().unwrap());
                        assert!((field - other).abs() <= other.abs() * 1e-15, "{name}: {field} is not {other}");
                    }
                }
            }
        }
        let tables = objects.iter().find(|object| object["quantity"] == "table_requests").unwrap();
        assert_eq!(tables["value"], 88_971_018_240u64);
        assert_eq!((&tables["source"], &tables["published"]), (&json!("derived"), &Value::Null));
    }

    #[test]
    fn markdown_sets_published_numbers_beside_ours() {
        let text = markdown(&reports("trine tsar-model"));
        for row in [
            "## bitnet-2b: prefill, 128 tokens\n",
            "## bitnet-2b: decode, 1 token\n",
            "| table_requests | 88.97 G | - | - | - | - |\n",
            "| TL-2 | requests | 101.65 G | fitted | 101.59 G | +0.06 % |\n",
            "| TL-2 | table_requests_percent_of_published | 87.58 | published | 87.60 | -0.02 % |\n",
            "| T-SAR AP 2x4 | requests | 6.27 G | derived | 7.45 G | -15.86 % |\n",
        ] {
            assert!(text.contains(row), "{row}{text}");
        }
        let tables = text.lines().filter(|line| line.starts_with('|'));
        assert!(tables.map(|line| line.matches('|').count()).all(|bars| bars == 7));
        let other = markdown(&reports("trine tsar-model --shape falcon3-10b"));
        assert!(!other.contains("| deviation |"), "nothing is published for it: {other}");
    }

    #[test]
    fn numbers_have_prefixes() {
        let texts = [0.0, 87.58, 1_500.0, 62.6e6, 101.59e9, 2e12].map(readable);
        assert_eq!(texts, ["0.00", "87.58", "1.50 k", "62.60 M", "101.59 G", "2.00 T"]);
    }
}
