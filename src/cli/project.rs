//! `trine project`: what to expect of a Jetson Orin, as tables.

use std::path::Path;

use serde_json::{Value, json};
use trine_backend::Format;

use super::Exit;
use super::args::{ProjectArgs, TableOutput};
use super::bench::csv_field;
use super::output::{print, print_json};
use crate::hub;
use crate::model::Config;
use crate::project::{Device, Engine, Model, Projection};
use crate::shapes::Shape;
use crate::{Error, Result};

/// Runs the subcommand.
///
/// # Errors
/// The model's config.json is missing or wrong, or an engine can't run it.
pub(super) fn run(args: &ProjectArgs) -> Result<Exit> {
    let projections = projections(args)?;
    match args.output {
        TableOutput::Md => print(&markdown(&projections))?,
        TableOutput::Csv => print(&csv(&projections))?,
        TableOutput::Json => {
            print_json(
                &projections.iter().map(|(model, projection)| object(model, projection)).collect::<Vec<_>>().into(),
            )?;
        }
    }
    Ok(Exit::Success)
}

/// One for each device and engine.
fn projections(args: &ProjectArgs) -> Result<Vec<(Model, Projection)>> {
    let (config, name) = config(args)?;
    let mut projections = Vec::new();
    for device in &args.device {
        let device = Device::find(device).ok_or_else(|| Error::Usage(format!("no device is named '{device}'")))?;
        for &engine in &args.engine {
            let body = args.weights.unwrap_or(usual(engine));
            let model = Model::new(&config, &name, body, args.head.unwrap_or(body));
            let projection = Projection::new(device, engine, &model, args.depth)?;
            projections.push((model, projection));
        }
    }
    Ok(projections)
}

/// The weights that an engine's kernels are described for.
fn usual(engine: Engine) -> Format {
    let group = match engine {
        Engine::Trine(_) => trine_backend::Group::G32,
        Engine::Seed(_) => trine_backend::Group::Row,
    };
    Format::Int4 { group, zero: trine_backend::ZeroKind::Symmetric }
}

fn config(args: &ProjectArgs) -> Result<(Config, String)> {
    let Some(dir) = &args.model else {
        let shape = Shape::find(&args.shape);
        let shape = shape.ok_or_else(|| Error::Usage(format!("no shape is named '{}'", args.shape)))?;
        return Ok((shape.config()?, shape.name.to_owned()));
    };
    let dir = &hub::resolve(dir)?;
    let name = Path::new(dir).file_name().unwrap_or(dir.as_os_str()).to_string_lossy();
    Ok((Config::load(dir)?, name.into_owned()))
}

/// A projection with its lines.
fn object(model: &Model, projection: &Projection) -> Value {
    let [low, likely, high] = projection.rates;
    let kernels: Vec<_> = projection
        .lines
        .iter()
        .map(|line| {
            let launches = f64::from(line.kernel.launches);
            json!({
                "kernel": line.kernel.name,
                "launches": line.kernel.launches,
                "microseconds": line.seconds * 1e6,
                "milliseconds_a_token": line.seconds * launches * 1e3,
                "bytes_a_token": line.kernel.blocks * line.kernel.bytes * launches,
                "bound": line.bound.name(),
            })
        })
        .collect();
    json!({
        "device": projection.device.name,
        "engine": projection.engine.to_string(),
        "model": model.name,
        "weights": model.body.to_string(),
        "tokens_a_second": likely,
        "tokens_a_second_low": low,
        "tokens_a_second_high": high,
        "tokens_a_second_measured": measured(model, projection),
        "bytes_a_token": projection.bytes,
        "share_of_peak_bandwidth": projection.share(),
        "fits_in_memory": projection.fits(model),
        "kernels": kernels,
    })
}

/// What was measured there, if it was.
fn measured(model: &Model, projection: &Projection) -> Option<f64> {
    let there = projection.device.name == "agx-orin-64" && model.name == "qwen2-7b";
    projection.engine.published().filter(|_| there)
}

/// A row for each projection, without its kernels.
fn csv(projections: &[(Model, Projection)]) -> String {
    let mut text = String::new();
    for (model, projection) in projections {
        let Value::Object(mut fields) = object(model, projection) else { continue };
        fields.remove("kernels");
        if text.is_empty() {
            text = fields.keys().map(String::as_str).collect::<Vec<_>>().join(",") + "\n";
        }
        text += &(fields.values().map(csv_field).collect::<Vec<_>>().join(",") + "\n");
    }
    text
}

/// A table of all projections, and one of the kernels of each.
fn markdown(projections: &[(Model, Projection)]) -> String {
    let mut text =
        "| device | engine | model, weights | tok/s | low to high | measured | GB a token | of the peak bandwidth |\n\
                    |---|---|---|---:|---:|---:|---:|---:|\n"
            .to_owned();
    for (model, projection) in projections {
        let [low, likely, high] = projection.rates;
        let measured = measured(model, projection).map_or("-".into(), |rate| format!("{rate:.1}"));
        text += &format!(
            "| {}{} | {} | {}, {} | {likely:.1} | {low:.1} to {high:.1} | {measured} | {:.3} | {:.0} % |\n",
            projection.device.name,
            if projection.fits(model) { "" } else { " (does not fit)" },
            projection.engine,
            model.name,
            model.body,
            projection.bytes / 1e9,
            projection.share() * 100.0,
        );
    }
    for (_, projection) in projections {
        text += &kernels(projection);
    }
    text
}

fn kernels(projection: &Projection) -> String {
    let mut text = format!(
        "\n## {} on {}\n\n| kernel | launches | us | ms a token | GB/s | bound by |\n|---|---:|---:|---:|---:|---|\n",
        projection.engine, projection.device.name
    );
    for line in &projection.lines {
        let (launches, bytes) = (f64::from(line.kernel.launches), line.kernel.blocks * line.kernel.bytes);
        text += &format!(
            "| {} | {launches} | {:.1} | {:.2} | {:.0} | {} |\n",
            line.kernel.name,
            line.seconds * 1e6,
            line.seconds * launches * 1e3,
            bytes / line.seconds / 1e9,
            line.bound.name(),
        );
    }
    text + &format!("| between kernels, and the host | | | {:.2} | | |\n", projection.between * 1e3)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::super::args::{Cli, Command};
    use super::*;

    fn projections(line: &str) -> Result<Vec<(Model, Projection)>> {
        match Cli::try_parse_from(line.split(' ')).unwrap().command {
            Command::Project(args) => super::projections(&args),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn every_device_and_engine_gets_a_row() {
        let all =
            projections("trine project --device agx-orin-64,orin-nano-8-super --engine trine-o2,seed-o4").unwrap();
        let text = markdown(&all);
        assert_eq!(text.lines().filter(|line| line.starts_with("| agx-orin-64")).count(), 2, "{text}");
        assert!(text.contains("seed-o4 | qwen2-7b, int4-row |") && text.contains("| 24.0 |"), "{text}");
        assert_eq!(csv(&all).lines().count(), 5);
        let slower = |at: usize, than: usize| all[at].1.rates[1] < all[than].1.rates[1];
        assert!(slower(2, 0) && slower(3, 1) && slower(1, 0), "{text}");
    }

    #[test]
    fn what_does_not_fit_is_said() {
        let all = projections("trine project --shape bitnet-30b --weights int4-g32 --device orin-nano-8").unwrap();
        assert!(markdown(&all).contains("orin-nano-8 (does not fit)"));
        assert_eq!(object(&all[0].0, &all[0].1)["fits_in_memory"], false);
    }

    #[test]
    fn what_was_not_counted_is_refused() {
        let error = projections("trine project --weights int8").unwrap_err().to_string();
        assert!(error.contains("not for int8"), "{error}");
    }
}
