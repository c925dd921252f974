use serde_json::json;

use super::fixtures::{added, byte_fallback, byte_fallback_json, byte_fallback_with, demo, demo_file, metaspace, read};
use super::{Special, Tokenizer};

/// The error of reading `json`, which is one line.
fn refusal(json: &serde_json::Value, config: Option<&serde_json::Value>) -> String {
    let Err(error) = read(json, config) else { panic!("accepted") };
    let line = error.to_string();
    assert!(!line.contains('\n'), "{line:?}");
    assert!(line.starts_with("t.json: "), "{line}");
    line
}

#[test]
fn demo_model_round_trip() {
    let demo = demo();
    let text = "Once upon a time — \"why?\" said the fox.\n\tÅngström 你好 😀";
    let ids = demo.encode(text, Special::PROMPT).unwrap();
    assert_eq!(ids[0], 1, "the post-processor adds BOS");
    assert_eq!(demo.decode(&ids, true), text);
    assert_eq!(demo.decode(&ids, false), format!("<s>{text}"));
    assert_eq!(demo.encode(text, Special::TEXT).unwrap(), ids[1..]);
    assert_eq!((demo.bos(), demo.eos(), demo.id_of("</s>"), demo.id_of("<none>")), (Some(1), Some(2), Some(2), None));
    assert!(demo.is_special(0) && demo.is_special(2) && !demo.is_special(3) && !demo.is_special(u32::MAX));
    assert_eq!(demo.token_bytes(demo.id_of("Ġlo").unwrap()), b" lo");
}

#[test]
fn vocabulary_size_is_the_highest_id_and_one() {
    let demo = demo();
    let size = demo.vocab_size() as u32;
    assert!(!demo.token_bytes(size - 1).is_empty() && demo.token_bytes(size).is_empty());
    assert_eq!(size, 4096);
    let mut json = byte_fallback_json();
    json["model"]["vocab"]["far"] = json!(300);
    let gapped = read(&json, None).unwrap();
    assert_eq!(gapped.vocab_size(), 301);
    assert_eq!(gapped.token_bytes(300), b"far");
    assert_eq!((gapped.token_bytes(290), gapped.has_token(290)), (&b""[..], false));
}

#[test]
fn special_text_is_parsed_only_when_asked() {
    let demo = demo();
    assert_eq!(demo.encode("</s>", Special::TEMPLATE).unwrap(), [2]);
    let plain = demo.encode("</s>", Special::TEXT).unwrap();
    assert!(plain.len() > 1 && !plain.contains(&2), "{plain:?}");
    assert_eq!(demo.decode(&plain, true), "</s>");
    assert_eq!(demo.encode("a</s>b", Special { add: true, parse: false }).unwrap()[0], 1);
    // An added token that is not special is a word of the vocabulary: it is always parsed.
    let mut json = byte_fallback_json();
    json["added_tokens"].as_array_mut().unwrap().push(added(265, "<think>", false));
    let thinking = read(&json, None).unwrap();
    assert_eq!(thinking.encode("<think>", Special::TEXT).unwrap(), [265]);
    assert_eq!(thinking.decode(&[265], true), "<think>");
}

#[test]
fn text_alone_is_encoded_like_a_prompt_without_special_text() {
    for (tokenizer, text) in [(demo(), "The  wolf,\nhe ran."), (byte_fallback(), "a b  ab 😀"), (metaspace(), "a b a")]
    {
        let parsed = tokenizer.encode(text, Special::TEMPLATE).unwrap();
        assert_eq!(tokenizer.encode(text, Special::TEXT).unwrap(), parsed);
        assert!(!parsed.is_empty());
        assert_eq!(tokenizer.decode(&parsed, false), text);
        assert_eq!(tokenizer.encode("", Special::TEXT).unwrap(), tokenizer.encode("", Special::TEMPLATE).unwrap());
    }
}

#[test]
fn bos_comes_once() {
    let a = byte_fallback().id_of("▁a").unwrap();
    let ids = |config, text| byte_fallback_with(config).encode(text, Special::PROMPT).unwrap();
    let bos = json!({"bos_token": {"content": "<s>"}, "eos_token": "</s>", "add_bos_token": true});
    assert_eq!(ids(bos.clone(), "a"), [1, a]);
    assert_eq!(ids(bos.clone(), "<s>a"), [1, a], "a template's BOS is not doubled");
    assert_eq!(ids(bos, ""), [1]);
    assert_eq!(ids(json!({"bos_token": "<s>"}), "a"), [a], "nothing asks for BOS");
    assert_eq!(ids(json!({"bos_token": "<s>", "add_bos_token": false}), "a"), [a]);
    assert_eq!(ids(json!({"bos_token": "<s>", "eos_token": "</s>", "add_eos_token": true}), "a"), [a, 2]);

    let mut demo_config = json!({"bos_token": "<s>", "add_bos_token": true});
    let demo_ids = |config: &serde_json::Value, text| {
        let config = config.to_string();
        let demo = Tokenizer::from_bytes(&demo_file("tokenizer.json"), Some(config.as_bytes()), "demo").unwrap();
        demo.encode(text, Special::PROMPT).unwrap()
    };
    let with = demo_ids(&demo_config, "sea");
    assert_eq!(with.iter().filter(|&&id| id == 1).count(), 1, "config and post-processor agree");
    assert_eq!(demo_ids(&demo_config, "<s>sea"), with);
    demo_config["add_bos_token"] = json!(false);
    assert_eq!(demo_ids(&demo_config, "sea"), with[1..], "the config overrules the post-processor");
}

#[test]
fn bos_without_a_config_is_not_doubled_either() {
    let demo = Tokenizer::from_bytes(&demo_file("tokenizer.json"), None, "demo").unwrap();
    assert_eq!((demo.bos(), demo.eos()), (None, None));
    assert_eq!(demo.encode("<s>sea", Special::PROMPT).unwrap(), demo.encode("sea", Special::PROMPT).unwrap());
}

#[test]
fn truncation_and_padding_of_the_file_are_ignored() {
    let mut json = byte_fallback_json();
    json["truncation"] = json!({"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0});
    json["padding"] = json!({"strategy": {"Fixed": 8}, "direction": "Right", "pad_to_multiple_of": null, "pad_id": 0,
        "pad_type_id": 0, "pad_token": "<unk>"});
    assert_eq!(read(&json, None).unwrap().encode("a b a b", Special::PROMPT).unwrap().len(), 4);
}

#[test]
fn malformed_files_are_refused_in_one_line() {
    let Err(e) = Tokenizer::from_bytes(b"{\"model\":", None, "t.json") else { panic!("accepted") };
    assert!(e.to_string().starts_with("t.json: ") && !e.to_string().contains('\n'), "{e}");
    for broken in [&b""[..], b"[]", b"\xff\xfe", b"{}", b"null"] {
        assert!(Tokenizer::from_bytes(broken, None, "t.json").is_err());
    }
    let good = byte_fallback_json();
    assert!(refusal(&good, Some(&json!({"bos_token": 7}))).contains("tokenizer_config.json"));
    assert!(refusal(&good, Some(&json!({"add_bos_token": true}))).contains("bos_token names no token"));

    let mut json = good.clone();
    json["model"]["type"] = json!("NotAModel");
    refusal(&json, None);
    let mut json = good.clone();
    json["model"]["vocab"]["far"] = json!(u32::MAX);
    assert!(refusal(&json, None).contains("4294967295"));
    let mut json = good.clone();
    json["post_processor"] = json!({"type": "TemplateProcessing", "pair": [], "special_tokens": {},
        "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]});
    refusal(&json, None);
    let mut json = good.clone();
    json["added_tokens"].as_array_mut().unwrap().push(added(300, "<|im_end|>", true));
    assert!(refusal(&json, None).contains("\"<|im_end|>\" has the id 300"));
    let mut json = good;
    json["decoder"] = json!({"type": "WordPiece", "prefix": "##", "cleanup": true});
    assert!(refusal(&json, None).contains("WordPiece is not supported"));
    json["decoder"] = json!({"type": "Strip", "content": " ", "start": 0, "stop": 1});
    assert!(refusal(&json, None).contains("Strip at the end"));
}

#[test]
fn tokens_without_a_decoder_are_spaced() {
    let mut json = byte_fallback_json();
    json["decoder"] = json!(null);
    let tokenizer = read(&json, None).unwrap();
    let ids = tokenizer.encode("a b", Special::TEXT).unwrap();
    assert_eq!(tokenizer.decode(&ids, false), "▁a ▁b");
    assert_eq!(tokenizer.decode(&ids, false), tokenizer.library_decode(&ids, false));
}

/// A real SentencePiece tokenizer against ids that transformers made. The file is not part of the project; without it
/// there is nothing to check.
#[test]
fn stories260k_golden_ids() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../shared/fixtures/stories260k");
    let (Ok(json), Ok(config)) =
        (std::fs::read(format!("{folder}/tokenizer.json")), std::fs::read(format!("{folder}/tokenizer_config.json")))
    else {
        eprintln!("skipped: {folder} holds no tokenizer");
        return;
    };
    let tokenizer = Tokenizer::from_bytes(&json, Some(&config), folder).unwrap();
    let cases: [(&str, &[u32]); 3] = [
        ("Once upon a time, there was a", &[1, 403, 407, 261, 378, 432, 383, 286, 261]),
        ("Lily and Tom went to the park. They", &[1, 317, 269, 274, 287, 263, 377, 267, 265, 282, 295, 433, 426, 342]),
        ("One day", &[1, 385, 328]),
    ];
    for (text, ids) in cases {
        assert_eq!(tokenizer.encode(text, Special::PROMPT).unwrap(), ids);
        assert_eq!(tokenizer.decode(ids, true), text);
        assert_eq!(tokenizer.encode(&format!("<s>{text}"), Special::PROMPT).unwrap(), ids);
    }
    assert_eq!(tokenizer.vocab_size(), 512);
}
