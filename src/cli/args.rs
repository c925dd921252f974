//! The command line: what can be asked for, in the names that users of llama.cpp know.

use std::num::NonZeroUsize;
use std::path::PathBuf;

use clap::builder::PossibleValuesParser;
use clap::{Args, Parser, Subcommand, ValueEnum};
use trine_backend::{Activation, Format, KvFormat};

use crate::Result;
use crate::backend::Settings;
use crate::engine::{DEFAULT_BATCH, EngineOptions};
use crate::eval::Windows;
use crate::files::{DEMO, ModelFiles};
use crate::hub;
use crate::model::Formats;
use crate::project;
use crate::quantize::Method;
use crate::shapes::Shape;
use crate::tsar_model::Shapes;

/// Runs large language models on small machines.
#[derive(Debug, Parser)]
#[command(name = "trine", disable_help_subcommand = true, arg_required_else_help = true)]
pub(super) struct Cli {
    #[command(flatten)]
    pub(super) verbosity: Verbosity,
    #[command(subcommand)]
    pub(super) command: Command,
}

/// How much goes to stderr.
#[derive(Clone, Copy, Debug, Args)]
pub(super) struct Verbosity {
    /// Print details and timings on stderr.
    #[arg(short, long, global = true, display_order = 900)]
    pub(super) verbose: bool,
    /// Print nothing but errors on stderr.
    #[arg(short, long, global = true, display_order = 901, conflicts_with = "verbose")]
    pub(super) quiet: bool,
}

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// Continue a text, or chat with a model that has a chat template.
    Run(Box<RunArgs>),
    /// Serve a model to other programs, in the manner of OpenAI's API, and as a web page.
    Serve(Box<ServeArgs>),
    /// Show what is in a model and what it takes.
    Info(InfoArgs),
    /// Show what this program and this machine have, and check them.
    Doctor(DoctorArgs),
    /// Measure the speed of prefill and decode.
    Bench(BenchArgs),
    /// Measure how well a model predicts a text.
    Perplexity(PerplexityArgs),
    /// Write a model with its weights in a smaller number format.
    Quantize(QuantizeArgs),
    /// Measure how far a model, or a number format, is from another one.
    Eval(Box<EvalArgs>),
    /// Download a model from the Hugging Face hub.
    Pull(PullArgs),
    /// Compile the kernels that a model needs on a device that is not here.
    Kernels(KernelsArgs),
    /// Run the same prompt on several backends and show where they differ.
    Compare(CompareArgs),
    /// Count what T-SAR's instructions would do in hardware, and compare.
    TsarModel(TsarModelArgs),
    /// Estimate the speed on a Jetson Orin that is not at hand.
    Project(ProjectArgs),
    /// Print a completion script for a shell.
    Completions {
        /// The shell.
        shell: clap_complete::Shell,
    },
    /// Print the manual pages.
    Man {
        /// Write one file for each page into this directory instead.
        #[arg(long, value_name = "DIR")]
        dir: Option<PathBuf>,
    },
}

/// Which model.
#[derive(Clone, Debug, Args)]
pub(super) struct ModelArgs {
    /// Hugging Face directory (config.json, *.safetensors, tokenizer.json), GGUF file, or OWNER/NAME that was pulled from
    /// the hub; without it the demo model in this program.
    #[arg(short, long, value_name = "MODEL", env = "TRINE_MODEL", hide_env_values = true)]
    pub(super) model: Option<PathBuf>,
}

impl ModelArgs {
    /// Reads the model's files.
    pub(super) fn open(&self) -> Result<ModelFiles> {
        match &self.model {
            Some(dir) => ModelFiles::open(hub::resolve(dir)?),
            None => ModelFiles::demo(),
        }
    }

    /// The model as it was asked for.
    pub(super) fn name(&self) -> String {
        self.model.as_ref().map_or_else(|| DEMO.into(), |model| model.display().to_string())
    }
}

/// Number formats on the device.
#[derive(Clone, Copy, Debug, Args)]
pub(super) struct FormatArgs {
    /// Number format of the layers' weights [default: as in the file]: f32, f16, bf16, ternary, int8, int8-row, int4-g32,
    /// int4-g64, int4-g128, int4-row, or one of these four with a minimum, such as int4-g32-min.
    #[arg(long, value_name = "FORMAT")]
    pub(super) weights: Option<Format>,
    /// Number format of embedding and lm_head [default: int8 where the layers are quantised, else as in the file].
    #[arg(long, value_name = "FORMAT")]
    pub(super) head: Option<Format>,
    /// Columns of an activation that share a scale where weights are INT4 or INT8 [default: 32, or all of a token's where the model
    /// was trained so].
    #[arg(long, value_name = "SCALE", value_enum)]
    pub(super) activations: Option<Activations>,
    /// Number format of the KV cache.
    #[arg(long, alias = "cache-type", value_name = "FORMAT", value_enum, default_value_t = Kv::F16)]
    pub(super) kv: Kv,
}

impl FormatArgs {
    /// These formats in the engine's options, the rest by default.
    pub(super) fn engine(&self) -> EngineOptions {
        EngineOptions {
            formats: Formats {
                body: self.weights,
                head: self.head,
                activation: self.activations.map(Activations::activation),
            },
            kv: self.kv.format(),
            ..EngineOptions::default()
        }
    }
}

/// [`Activation`] by name, for weights that are not dense.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Activations {
    /// One scale for each 32 columns.
    Block,
    /// One scale for each token: smaller and coarser.
    Token,
}

impl Activations {
    fn activation(self) -> Activation {
        match self {
            Activations::Block => Activation::Block,
            Activations::Token => Activation::Token,
        }
    }
}

/// [`KvFormat`] by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Kv {
    F32,
    F16,
    Int8,
}

impl Kv {
    pub(super) fn format(self) -> KvFormat {
        match self {
            Kv::F32 => KvFormat::F32,
            Kv::F16 => KvFormat::F16,
            Kv::Int8 => KvFormat::Int8,
        }
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Kv::F32 => "f32",
            Kv::F16 => "f16",
            Kv::Int8 => "int8",
        }
    }
}

/// How the device is used.
#[derive(Clone, Debug, Default, Args)]
pub(super) struct DeviceArgs {
    /// CPU threads [default: one for each performance core].
    #[arg(short, long, value_name = "N")]
    pub(super) threads: Option<NonZeroUsize>,
    #[command(flatten)]
    pub(super) choice: ChoiceArgs,
}

/// What of a device has one value also where several numbers of threads are tried.
#[derive(Clone, Debug, Default, Args)]
pub(super) struct ChoiceArgs {
    /// CPU threads for prefill; -tb for short [default: as many as for decoding].
    #[arg(long, value_name = "N")]
    pub(super) threads_batch: Option<NonZeroUsize>,
    /// Instruction set to use rather than the best one found; `trine doctor` shows that.
    #[arg(long, value_name = "NAME")]
    pub(super) isa: Option<String>,
    /// Kernel for the matrices that it can multiply with, rather than the best one; `trine doctor --kernels` shows them.
    #[arg(long, value_name = "NAME")]
    pub(super) kernel: Option<String>,
    /// Device to use, where the backend has several: its number or a part of its name, as in `trine doctor`.
    #[arg(long, value_name = "N|NAME")]
    pub(super) device: Option<String>,
}

impl DeviceArgs {
    /// The same as the backends know it.
    pub(super) fn settings(&self) -> Settings {
        Settings {
            threads: self.threads.map(NonZeroUsize::get),
            threads_batch: self.choice.threads_batch.map(NonZeroUsize::get),
            isa: self.choice.isa.clone(),
            kernel: self.choice.kernel.clone(),
            device: self.choice.device.clone(),
        }
    }
}

/// Sizes of context and steps.
#[derive(Clone, Copy, Debug, Args)]
pub(super) struct SizeArgs {
    /// Tokens of the context [default: the model's, up to 4096].
    #[arg(short, long, value_name = "N")]
    pub(super) ctx_size: Option<usize>,
    /// Tokens of a prefill step.
    #[arg(short, long, value_name = "N", default_value_t = DEFAULT_BATCH)]
    pub(super) batch_size: usize,
}

/// `trine run`.
#[derive(Debug, Args)]
#[command(
    after_help = "Without a prompt, a piped stdin is read; on a terminal a model with a chat template starts a chat.\n\
    Sampling: what the model's generation_config.json says is the default (do_sample false: --temp 0), \
    and a flag beats it."
)]
pub(super) struct RunArgs {
    #[command(flatten)]
    pub(super) model: ModelArgs,
    #[command(flatten)]
    pub(super) prompt: PromptArgs,
    #[command(flatten)]
    pub(super) limits: LimitArgs,
    #[command(flatten)]
    pub(super) sizes: SizeArgs,
    #[command(flatten)]
    pub(super) device: DeviceArgs,
    #[command(flatten)]
    pub(super) formats: FormatArgs,
    #[command(flatten)]
    pub(super) sampling: SamplingArgs,
    /// Put the prompt into the model's chat template, as is done anyway where the model has one.
    #[arg(long)]
    pub(super) chat: bool,
    /// Continue the prompt as it is, also where the model has a chat template.
    #[arg(long, conflicts_with_all = ["chat", "system"])]
    pub(super) no_chat: bool,
    /// System message of the chat; -sys for short.
    #[arg(long, value_name = "TEXT")]
    pub(super) system: Option<String>,
}

/// Where the prompt comes from: one of these or stdin.
#[derive(Debug, Args)]
#[group(multiple = false)]
pub(super) struct PromptArgs {
    /// The prompt.
    #[arg(value_name = "PROMPT")]
    pub(super) text: Option<String>,
    /// The prompt.
    #[arg(short = 'p', long = "prompt", value_name = "PROMPT")]
    pub(super) option: Option<String>,
    /// Read the prompt from a file; one newline at its end is left out. `-` is stdin.
    #[arg(short, long, value_name = "FILE")]
    pub(super) file: Option<PathBuf>,
}

/// When a generation ends.
#[derive(Debug, Args)]
pub(super) struct LimitArgs {
    /// The most tokens to produce; -1 = until the model ends or the context is full [default: -1].
    #[arg(short, long, value_name = "N", allow_negative_numbers = true, value_parser = limit)]
    pub(super) n_predict: Option<Limit>,
    /// End before this text; may be given several times.
    #[arg(short = 'r', long, value_name = "TEXT", visible_alias = "reverse-prompt",
        value_parser = clap::builder::NonEmptyStringValueParser::new())]
    pub(super) stop: Vec<String>,
    /// Go on after the model's end token.
    #[arg(long)]
    pub(super) ignore_eos: bool,
}

/// A number of tokens, or none for as many as there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Limit(pub(super) Option<usize>);

fn limit(text: &str) -> std::result::Result<Limit, String> {
    match text {
        "-1" => Ok(Limit(None)),
        _ => text.parse().map(|count| Limit(Some(count))).map_err(|_| "give a count, or -1 for no limit".into()),
    }
}

/// How tokens are chosen.
#[derive(Debug, Default, Args)]
pub(super) struct SamplingArgs {
    /// Start of the random numbers: the same seed gives the same text [default: another one each time].
    #[arg(short, long, value_name = "N")]
    pub(super) seed: Option<u64>,
    /// Temperature; 0 always takes the likeliest token [default: the model's, or 0.8].
    #[arg(long, value_name = "T", alias = "temperature", allow_negative_numbers = true)]
    pub(super) temp: Option<f32>,
    /// Keep the K likeliest tokens; 0 = all [default: the model's, or 40].
    #[arg(long, value_name = "K")]
    pub(super) top_k: Option<usize>,
    /// Keep the likeliest tokens that together reach this probability; 1 = all [default: the model's, or 0.95].
    #[arg(long, value_name = "P", allow_negative_numbers = true)]
    pub(super) top_p: Option<f32>,
    /// Keep tokens at least this fraction as likely as the likeliest; 0 = all [default: 0.05].
    #[arg(long, value_name = "P", allow_negative_numbers = true)]
    pub(super) min_p: Option<f32>,
    /// Divides the logits of tokens seen of late; 1 = off [default: the model's, or 1].
    #[arg(long, value_name = "X", allow_negative_numbers = true)]
    pub(super) repeat_penalty: Option<f32>,
    /// Tokens, the prompt's included, that the penalties look back on; 0 = none [default: 64].
    #[arg(long, value_name = "N")]
    pub(super) repeat_last_n: Option<usize>,
    /// Subtracted from the logits of tokens seen of late [default: 0].
    #[arg(long, value_name = "X", allow_negative_numbers = true)]
    pub(super) presence_penalty: Option<f32>,
    /// Subtracted from a token's logit once for each time that it was seen of late [default: 0].
    #[arg(long, value_name = "X", allow_negative_numbers = true)]
    pub(super) frequency_penalty: Option<f32>,
    /// Change a token's logit: 42+1.5, 42-1.5 or 42=-inf (never); may be given several times.
    #[arg(long, value_name = "ID(+|-)BIAS", value_parser = logit_bias)]
    pub(super) logit_bias: Vec<(u32, f32)>,
}

/// `42+1.5`, `42-1.5`, `42=1.5`, `42-inf`.
fn logit_bias(text: &str) -> std::result::Result<(u32, f32), String> {
    let wrong = || "give a token's id and its bias, as 42+1.5, 42-1.5 or 42=-inf".to_owned();
    let at = text.find(['+', '-', '=']).ok_or_else(wrong)?;
    let (id, bias) = text.split_at(at);
    let bias = bias.strip_prefix('=').unwrap_or(bias);
    Ok((id.parse().map_err(|_| wrong())?, bias.parse().map_err(|_| wrong())?))
}

/// `trine serve`.
#[derive(Debug, Args)]
#[command(
    after_help = "SIGTERM or Ctrl-C: no more requests are taken, texts that are being written have --grace to end."
)]
pub(super) struct ServeArgs {
    #[command(flatten)]
    pub(super) model: ModelArgs,
    /// Name or address to listen on; any but this machine's own (loopback) needs --api-key or --no-auth.
    #[arg(long, value_name = "HOST", default_value = "127.0.0.1", env = "TRINE_HOST")]
    pub(super) host: String,
    /// Port to listen on; 0 = any that is free.
    #[arg(long, value_name = "PORT", default_value_t = 8080, env = "TRINE_PORT")]
    pub(super) port: u16,
    /// Texts that are written at the same time; each has a context of its own.
    #[arg(long, value_name = "N", visible_alias = "parallel", default_value = "4")]
    pub(super) slots: NonZeroUsize,
    #[command(flatten)]
    pub(super) sizes: SizeArgs,
    #[command(flatten)]
    pub(super) device: DeviceArgs,
    #[command(flatten)]
    pub(super) formats: FormatArgs,
    /// What clients call the model [default: its directory's name].
    #[arg(long, value_name = "NAME")]
    pub(super) alias: Option<String>,
    #[command(flatten)]
    pub(super) access: AccessArgs,
    #[command(flatten)]
    pub(super) limits: ServerLimitArgs,
}

/// Who may ask a server.
#[derive(Debug, Args)]
pub(super) struct AccessArgs {
    /// Key that requests must bring (Authorization: Bearer KEY); better given in the environment, where others don't see it.
    #[arg(long, value_name = "KEY", env = "TRINE_API_KEY", hide_env_values = true, conflicts_with = "no_auth",
        value_parser = clap::builder::NonEmptyStringValueParser::new())]
    pub(super) api_key: Option<String>,
    /// Answer anybody who can reach the address.
    #[arg(long)]
    pub(super) no_auth: bool,
    /// Let web pages of this origin (https://example.org, or * for any) ask; may be given several times.
    #[arg(long, value_name = "ORIGIN")]
    pub(super) cors_origin: Vec<String>,
}

/// Bounds on what a server's clients can take.
#[derive(Debug, Args)]
pub(super) struct ServerLimitArgs {
    /// Requests that may wait for a slot; more are told to come again later.
    #[arg(long, value_name = "N", default_value_t = 64)]
    pub(super) queue: usize,
    /// Connections that may be open.
    #[arg(long, value_name = "N", default_value = "256")]
    pub(super) max_connections: NonZeroUsize,
    /// Bytes of a request's body.
    #[arg(long, value_name = "BYTES", default_value_t = 1 << 20)]
    pub(super) max_body: usize,
    /// Seconds from a request to the end of its answer.
    #[arg(long, value_name = "S", default_value_t = 600)]
    pub(super) timeout: u64,
    /// Seconds for a request's head, and between requests on a connection.
    #[arg(long, value_name = "S", default_value_t = 15)]
    pub(super) idle_timeout: u64,
    /// Seconds in which a client must take some of what it was sent.
    #[arg(long, value_name = "S", default_value_t = 30)]
    pub(super) read_timeout: u64,
    /// Seconds that texts have to end when the server stops.
    #[arg(long, value_name = "S", default_value_t = 10)]
    pub(super) grace: u64,
}

/// `trine info`.
#[derive(Debug, Args)]
pub(super) struct InfoArgs {
    #[command(flatten)]
    pub(super) model: ModelArgs,
    #[command(flatten)]
    pub(super) sizes: SizeArgs,
    #[command(flatten)]
    pub(super) formats: FormatArgs,
    /// Print JSON.
    #[arg(long)]
    pub(super) json: bool,
}

/// `trine doctor`.
#[derive(Debug, Args)]
pub(super) struct DoctorArgs {
    #[command(flatten)]
    pub(super) device: DeviceArgs,
    /// Show which kernels multiply with a model's matrices, at which cost and why.
    #[arg(long)]
    pub(super) kernels: bool,
    #[command(flatten)]
    pub(super) model: ModelArgs,
    #[command(flatten)]
    pub(super) formats: FormatArgs,
    /// Print JSON.
    #[arg(long)]
    pub(super) json: bool,
}

/// `trine kernels`.
#[derive(Debug, Args)]
#[command(
    after_help = "Needs NVRTC, as `trine run` on the device would, but no GPU. On the device set TRINE_KERNELS to the directory: \
    then it needs no compiler. The same program, model and number formats ask for the same kernels."
)]
pub(super) struct KernelsArgs {
    /// The device: its compute capability, such as 8.7 for Jetson Orin.
    #[arg(long = "for", value_name = "DEVICE")]
    pub(super) for_device: String,
    /// Where the kernels go, a file each.
    #[arg(value_name = "DIR")]
    pub(super) folder: PathBuf,
    #[command(flatten)]
    pub(super) model: ModelArgs,
    #[command(flatten)]
    pub(super) formats: FormatArgs,
}

/// `trine bench`.
#[derive(Debug, Args)]
#[command(after_help = "Lists are separated by commas. Each test runs once to warm up and then -r times.")]
pub(super) struct BenchArgs {
    #[command(flatten)]
    pub(super) model: ModelArgs,
    /// Measure a model of this shape with random weights, made in memory, instead of one from a file.
    #[arg(long, value_name = "NAME", conflicts_with = "model",
        value_parser = PossibleValuesParser::new(Shape::known().iter().map(|shape| shape.name)))]
    pub(super) synthetic: Option<String>,
    /// Start of the random weights.
    #[arg(long, value_name = "N", default_value_t = 0, requires = "synthetic")]
    pub(super) seed: u64,
    /// Tokens of the prompt; 0 = no prefill test.
    #[arg(short = 'p', long, value_name = "N,…", value_delimiter = ',', default_value = "512")]
    pub(super) n_prompt: Vec<usize>,
    /// Tokens to decode; 0 = no decode test.
    #[arg(short = 'n', long, value_name = "N,…", value_delimiter = ',', default_value = "128")]
    pub(super) n_gen: Vec<usize>,
    /// Tokens in the context before the test begins.
    #[arg(short = 'd', long, value_name = "N,…", value_delimiter = ',', default_value = "0")]
    pub(super) n_depth: Vec<usize>,
    /// Texts that decode together; above 1 their tokens are counted together, and there is no prefill test.
    #[arg(long, value_name = "N,…", value_delimiter = ',', default_value = "1")]
    pub(super) slots: Vec<NonZeroUsize>,
    /// Repetitions of each test.
    #[arg(short, long, value_name = "N", default_value = "5")]
    pub(super) repetitions: NonZeroUsize,
    /// CPU threads; each number is measured [default: one for each performance core].
    #[arg(short, long, value_name = "N,…", value_delimiter = ',')]
    pub(super) threads: Vec<NonZeroUsize>,
    #[command(flatten)]
    pub(super) choice: ChoiceArgs,
    /// Tokens of a prefill step.
    #[arg(short, long, value_name = "N", default_value_t = DEFAULT_BATCH)]
    pub(super) batch_size: usize,
    #[command(flatten)]
    pub(super) formats: FormatArgs,
    /// How the results are printed.
    #[arg(short, long, value_enum, default_value_t = TableOutput::Md)]
    pub(super) output: TableOutput,
    /// Print a table of the kernels of each test's last step too, where the backend tells what they take.
    #[arg(long)]
    pub(super) profile: bool,
    /// Draw how speed grows with the threads of -t into this file, as SVG.
    #[arg(long, value_name = "FILE", conflicts_with = "threads_batch")]
    pub(super) plot: Option<PathBuf>,
}

impl BenchArgs {
    /// Reads the model's files, or makes up a model.
    pub(super) fn open(&self) -> Result<ModelFiles> {
        match self.synthetic.as_deref().and_then(Shape::find) {
            Some(shape) => ModelFiles::synthetic(shape, self.seed),
            None => self.model.open(),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum TableOutput {
    /// A Markdown table.
    Md,
    /// Comma-separated values.
    Csv,
    /// A JSON array.
    Json,
}

/// `trine perplexity`.
#[derive(Debug, Args)]
pub(super) struct PerplexityArgs {
    #[command(flatten)]
    pub(super) model: ModelArgs,
    #[command(flatten)]
    pub(super) text: TextArgs,
    #[command(flatten)]
    pub(super) device: DeviceArgs,
    #[command(flatten)]
    pub(super) formats: FormatArgs,
    /// How the result is printed.
    #[arg(short, long, visible_alias = "format", value_enum, default_value_t = PerplexityOutput::Text)]
    pub(super) output: PerplexityOutput,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum PerplexityOutput {
    /// One line.
    Text,
    /// A Markdown table.
    Md,
    /// A JSON object.
    Json,
}

/// `trine quantize`.
#[derive(Debug, Args)]
#[command(
    after_help = "Writes config.json, the tokenizer's files and safetensors in the layout of docs/formats.md; OUT appears \
    when all is done.\nCodes that the new format holds are kept as they are: AWQ, GPTQ and ternary weights lose nothing.\n\
    The calibration text should be like what the model will read: some 100 kB are enough."
)]
pub(super) struct QuantizeArgs {
    /// The model, as for -m; `demo` for the one in this program.
    #[arg(value_name = "IN")]
    pub(super) input: PathBuf,
    /// The directory to make.
    #[arg(value_name = "OUT")]
    pub(super) output: PathBuf,
    /// Number format of the layers' weights [default: as in the model]: int4-g32, int4-g64, int4-g128, int4-row, one
    /// of these four with a minimum, such as int4-g32-min, int8, int8-row, ternary (where they are), f32, f16 or bf16.
    #[arg(long, value_name = "FORMAT")]
    pub(super) to: Option<Format>,
    /// Number format of embedding and lm_head [default: int8 where the layers are quantised, else as in the model].
    #[arg(long, value_name = "FORMAT")]
    pub(super) head: Option<Format>,
    /// How int4 codes are chosen: rtn (the nearest), search (the best scale) or gptq (roundings are made up for).
    #[arg(long, value_name = "METHOD", default_value = "search")]
    pub(super) method: Method,
    /// Text that shows which weights matter.
    #[arg(long, value_name = "FILE")]
    pub(super) calibrate: Option<PathBuf>,
    /// Tokens of that text that are used.
    #[arg(long, value_name = "N", default_value = "32768", requires = "calibrate")]
    pub(super) calibrate_tokens: NonZeroUsize,
    #[command(flatten)]
    pub(super) device: DeviceArgs,
}

/// A text to measure with, and how it is cut up.
#[derive(Clone, Debug, Args)]
pub(super) struct TextArgs {
    /// The text; without it, or as `-`, stdin.
    #[arg(short, long, value_name = "FILE")]
    pub(super) file: Option<PathBuf>,
    /// Use only the first N characters of the text.
    #[arg(long, value_name = "N")]
    pub(super) chars: Option<usize>,
    /// Tokens of a window: the model sees nothing before it.
    #[arg(short = 'c', long, visible_alias = "ctx-size", value_name = "N", default_value_t = 512)]
    pub(super) window: usize,
    /// Tokens from one window to the next; in less than a window, each token is scored once, with more before it
    /// [default: the window].
    #[arg(long, value_name = "N")]
    pub(super) stride: Option<usize>,
    /// Leave out the first N tokens of each window, which have little before them.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(super) skip: usize,
}

impl TextArgs {
    /// How the text is cut up.
    pub(super) fn windows(&self) -> Windows {
        Windows { window: self.window, stride: self.stride.unwrap_or(self.window), skip: self.skip }
    }
}

/// `trine eval`.
#[derive(Debug, Args)]
#[command(
    after_help = "The price of a format: trine eval -m MODEL --weights int4-g32 --against-weights bf16 -f TEXT\n\
    Both models are in memory at the same time; --save-logits and then --against-logits does with one at a time.\n\
    Divergences are in nats, of the model from the one that it is compared with."
)]
pub(super) struct EvalArgs {
    #[command(flatten)]
    pub(super) model: ModelArgs,
    #[command(flatten)]
    pub(super) text: TextArgs,
    /// The model to compare with [default: the same one, where one of its formats is given].
    #[arg(long, value_name = "MODEL", conflicts_with = "against_logits")]
    pub(super) against: Option<PathBuf>,
    /// Compare with logits that another call saved for the same text.
    #[arg(long, value_name = "FILE")]
    pub(super) against_logits: Option<PathBuf>,
    /// Number format of the other model's weights [default: as in the file].
    #[arg(long, value_name = "FORMAT", conflicts_with = "against_logits")]
    pub(super) against_weights: Option<Format>,
    /// Number format of the other model's embedding and lm_head [default: as with --head].
    #[arg(long, value_name = "FORMAT", conflicts_with = "against_logits")]
    pub(super) against_head: Option<Format>,
    /// Number format of the other model's KV cache [default: that of --kv].
    #[arg(long, value_name = "FORMAT", value_enum, conflicts_with = "against_logits")]
    pub(super) against_kv: Option<Kv>,
    /// Save the model's logits; 2 bytes for each token of the vocabulary at each scored token of the text.
    #[arg(long, value_name = "FILE")]
    pub(super) save_logits: Option<PathBuf>,
    #[command(flatten)]
    pub(super) device: DeviceArgs,
    #[command(flatten)]
    pub(super) formats: FormatArgs,
    /// How the result is printed.
    #[arg(short, long, visible_alias = "format", value_enum, default_value_t = EvalOutput::Md)]
    pub(super) output: EvalOutput,
}

/// `trine compare`.
#[derive(Debug, Args)]
#[command(
    after_help = "Each backend is compared with the first one: the logits of the prompt, the greedy tokens after it, \
    and every op of its first tokens.\nAn op's own difference is what it makes of the first backend's inputs; drift is \
    how far the results have come apart when each goes on from its own."
)]
pub(super) struct CompareArgs {
    #[command(flatten)]
    pub(super) model: ModelArgs,
    /// Backends of this build, two or more; `oracle` is the scalar reference [default: all, and the oracle if that is
    /// one].
    #[arg(long, value_name = "NAME,…", value_delimiter = ',')]
    pub(super) backends: Vec<String>,
    /// The prompt.
    #[arg(short, long, value_name = "TEXT", default_value = "Once upon a time there was a")]
    pub(super) prompt: String,
    /// Tokens to decode greedily; 0 = none.
    #[arg(short, long, value_name = "N", default_value_t = 64)]
    pub(super) n_predict: usize,
    #[command(flatten)]
    pub(super) device: DeviceArgs,
    #[command(flatten)]
    pub(super) formats: FormatArgs,
    /// Print JSON.
    #[arg(long)]
    pub(super) json: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum EvalOutput {
    /// Markdown tables.
    Md,
    /// A JSON object.
    Json,
}

impl EvalArgs {
    /// The other model and its formats, where it is a model.
    pub(super) fn other(&self) -> Option<(ModelArgs, FormatArgs)> {
        let formats = FormatArgs {
            weights: self.against_weights,
            head: self.against_head,
            activations: self.formats.activations,
            kv: self.against_kv.unwrap_or(self.formats.kv),
        };
        let asked =
            self.against.is_some() || formats.weights.is_some() || formats.head.is_some() || self.against_kv.is_some();
        let model = self.against.clone().map_or_else(|| self.model.clone(), |model| ModelArgs { model: Some(model) });
        asked.then_some((model, formats))
    }
}

/// `trine pull`.
#[derive(Debug, Args)]
#[command(
    after_help = "It goes where Python's huggingface_hub keeps its files, and its path is printed. -m OWNER/NAME finds it there.\n\
    Environment: HF_HOME, HF_HUB_CACHE, HF_TOKEN, HF_ENDPOINT, HF_HUB_OFFLINE, HTTPS_PROXY, SSL_CERT_FILE."
)]
pub(super) struct PullArgs {
    /// The model; of GGUF files one by its name or number format, as OWNER/NAME:Q4_K_M.
    #[arg(value_name = "OWNER/NAME[@REVISION][:FILE]")]
    pub(super) model: String,
    /// Print JSON.
    #[arg(long)]
    pub(super) json: bool,
}

/// `trine tsar-model`.
#[derive(Debug, Args)]
#[command(
    after_help = "Nothing is run: a model's shapes are enough. TL-2 keeps its tables in memory; T-SAR AP and OP make \
    theirs in registers.\nEach number is derived from the shapes, fitted to a published one, or published: T-SAR, \
    arXiv 2511.13676."
)]
pub(super) struct TsarModelArgs {
    /// Directory with the config.json of the model to count for.
    #[arg(short, long, value_name = "DIR", conflicts_with = "shape")]
    pub(super) model: Option<PathBuf>,
    /// A known model to count for.
    #[arg(long, value_name = "NAME", default_value = Shapes::DEFAULT,
        value_parser = PossibleValuesParser::new(Shapes::names()))]
    pub(super) shape: String,
    /// Tokens of the prompt; 0 = no prefill.
    #[arg(short = 'p', long, value_name = "N", default_value_t = 128)]
    pub(super) n_prompt: u32,
    /// Tokens to decode; 0 = no decode.
    #[arg(short = 'n', long, value_name = "N", default_value_t = 1)]
    pub(super) n_gen: u32,
    /// How the results are printed.
    #[arg(short, long, value_enum, default_value_t = TableOutput::Md)]
    pub(super) output: TableOutput,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Each kernel of a token is described by its blocks, bytes, instructions (counted in machine code for sm_87) and the \
    loads that it waits for; a multiprocessor is a queueing network of its resident blocks. The three rates are for what is \
    assumed of bandwidth, latency and launches at its worst, as it is likely, and at its best. See docs/project.md."
)]
pub(super) struct ProjectArgs {
    /// Directory with the config.json of the model.
    #[arg(short, long, value_name = "DIR", conflicts_with = "shape")]
    pub(super) model: Option<PathBuf>,
    /// A known model.
    #[arg(long, value_name = "NAME", default_value = "qwen2-7b",
        value_parser = PossibleValuesParser::new(Shape::known().iter().map(|shape| shape.name)))]
    pub(super) shape: String,
    /// The devices.
    #[arg(long, value_name = "NAME,…", value_delimiter = ',', default_value = "agx-orin-64",
        value_parser = PossibleValuesParser::new(project::Device::ALL.map(|device| device.name)))]
    pub(super) device: Vec<String>,
    /// Whose kernels, and with how many rows of a matrix to a block: trine-o1, -o2, -o4, -o8, or seed-o1 to -o8.
    #[arg(long, value_name = "NAME,…", value_delimiter = ',', default_value = "trine-o2")]
    pub(super) engine: Vec<project::Engine>,
    /// Number format of the layers' weights [default: int4-g32, or the seed's int4-row].
    #[arg(long, value_name = "FORMAT")]
    pub(super) weights: Option<Format>,
    /// Number format of lm_head [default: that of the layers].
    #[arg(long, value_name = "FORMAT")]
    pub(super) head: Option<Format>,
    /// Positions in the KV cache.
    #[arg(short, long, value_name = "N", default_value_t = 0)]
    pub(super) depth: usize,
    /// How the results are printed.
    #[arg(short, long, value_enum, default_value_t = TableOutput::Md)]
    pub(super) output: TableOutput,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    fn parse(line: &str) -> Cli {
        Cli::try_parse_from(line.split(' ')).unwrap()
    }

    fn run(line: &str) -> RunArgs {
        match parse(line).command {
            Command::Run(args) => *args,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_definition_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn counts_and_numbers_may_be_negative() {
        assert_eq!(run("trine run -n -1").limits.n_predict, Some(Limit(None)));
        assert_eq!(run("trine run -n 0").limits.n_predict, Some(Limit(Some(0))));
        assert_eq!(run("trine run --presence-penalty -1.5").sampling.presence_penalty, Some(-1.5));
        assert!(Cli::try_parse_from(["trine", "run", "-n", "-2"]).is_err());
        assert!(Cli::try_parse_from(["trine", "run", "-t", "0"]).is_err());
    }

    #[test]
    fn logit_biases_are_read_in_each_form() {
        assert_eq!(logit_bias("42+1.5"), Ok((42, 1.5)));
        assert_eq!(logit_bias("42-1.5"), Ok((42, -1.5)));
        assert_eq!(logit_bias("42=2"), Ok((42, 2.0)));
        assert_eq!(logit_bias("42=-2"), Ok((42, -2.0)));
        assert_eq!(logit_bias("42-inf"), Ok((42, f32::NEG_INFINITY)));
        for bad in ["", "42", "+1", "x+1", "42+", "42+x", "-1+1", "42 + 1", "4294967296+1"] {
            assert!(logit_bias(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn lists_are_separated_by_commas() {
        match parse("trine bench -p 1,2 -n 0 -d 0,64 -t 1,2").command {
            Command::Bench(args) => {
                assert_eq!((args.n_prompt, args.n_gen, args.n_depth), (vec![1, 2], vec![0], vec![0, 64]));
                assert_eq!(args.threads.iter().map(|n| n.get()).collect::<Vec<_>>(), [1, 2]);
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_prompt_has_one_source() {
        for line in ["trine run a -p b", "trine run -p a -f b", "trine run a -f b"] {
            assert!(Cli::try_parse_from(line.split(' ')).is_err(), "{line}");
        }
    }
}
