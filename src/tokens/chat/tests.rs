//! The expected texts are what Jinja 3.1 under Python prints for the same template and messages, set up as Hugging Face
//! does. The templates in `styles/` use the constructs of the model families that they are named after.

use serde_json::json;

use super::*;

const USER: (&str, &str) = ("user", "Hi <b> & 'you' ");

/// The conversation that most tests render.
const CONVERSATION: [(&str, &str); 4] =
    [("system", " Be brief. "), USER, ("assistant", "<think>\nhm\n</think>\n\nHello "), ("user", "Bye 😀")];

macro_rules! style {
    ($name:literal) => {
        template(include_str!(concat!("styles/", $name, ".jinja")))
    };
}

fn template(source: &str) -> ChatTemplate {
    ChatTemplate::new(source, Some("<s>"), Some("</s>"), "t").unwrap()
}

fn messages(turns: &[(&str, &str)]) -> Vec<Message> {
    turns.iter().map(|&(role, content)| Message::new(role, content)).collect()
}

fn extra(value: serde_json::Value) -> Map<String, serde_json::Value> {
    value.as_object().unwrap().clone()
}

fn weather_tool() -> serde_json::Value {
    json!([{"type": "function", "function": {"name": "get_weather", "description": "It's <i>é</i>", "parameters": {
        "type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"],
        "max": 1.0, "strict": true, "none": null, "empty": [], "eo": {}}}}])
}

/// Renders a template over [`CONVERSATION`].
fn render(source: &str) -> Result<String> {
    template(source).render(&messages(&CONVERSATION), true, None)
}

/// Checks the conversation with a system message and an answer to come, and the user's message alone.
#[track_caller]
fn check(template: &ChatTemplate, conversation: &str, user_alone: &str) {
    let today = extra(json!({"today": "24 Jul 2026"}));
    assert_eq!(template.render(&messages(&CONVERSATION), true, Some(&today)).unwrap(), conversation);
    assert_eq!(template.render(&messages(&[USER]), false, Some(&today)).unwrap(), user_alone);
}

#[test]
fn llama2_style() {
    check(
        &style!("llama2"),
        "<s>[INST] <<SYS>>\n Be brief. \n<</SYS>>\n\nHi <b> & 'you' [/INST] <think>\nhm\n</think>\n\nHello </s>\
         <s>[INST] Bye 😀 [/INST]",
        "<s>[INST] Hi <b> & 'you' [/INST]",
    );
}

#[test]
fn llama3_style() {
    check(
        &style!("llama3"),
        "<s><|start_header_id|>system<|end_header_id|>\n\nDate: 24 Jul 2026\n\nBe brief.<|eot_id|>\
         <|start_header_id|>user<|end_header_id|>\n\nHi <b> & 'you'<|eot_id|>\
         <|start_header_id|>assistant<|end_header_id|>\n\n<think>\nhm\n</think>\n\nHello<|eot_id|>\
         <|start_header_id|>user<|end_header_id|>\n\nBye 😀<|eot_id|>\
         <|start_header_id|>assistant<|end_header_id|>\n\n",
        "<s><|start_header_id|>system<|end_header_id|>\n\nDate: 24 Jul 2026\n\n<|eot_id|>\
         <|start_header_id|>user<|end_header_id|>\n\nHi <b> & 'you'<|eot_id|>",
    );
    let tools = extra(json!({"tools": weather_tool(), "today": "d"}));
    let expected = r#"<s><|start_header_id|>system<|end_header_id|>

Date: d

Functions:

{
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "It's <i>é</i>",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {
                    "type": "string"
                }
            },
            "required": [
                "city"
            ],
            "max": 1.0,
            "strict": true,
            "none": null,
            "empty": [],
            "eo": {}
        }
    }
}

<|eot_id|><|start_header_id|>user<|end_header_id|>

Hi <b> & 'you'<|eot_id|><|start_header_id|>assistant<|end_header_id|>

"#;
    assert_eq!(style!("llama3").render(&messages(&[USER]), true, Some(&tools)).unwrap(), expected);
}

#[test]
fn qwen2_style() {
    check(
        &style!("qwen2"),
        "<|im_start|>system\n Be brief. <|im_end|>\n<|im_start|>user\nHi <b> & 'you' <|im_end|>\n\
         <|im_start|>assistant\n<think>\nhm\n</think>\n\nHello <|im_end|>\n<|im_start|>user\nBye 😀<|im_end|>\n\
         <|im_start|>assistant\n",
        "<|im_start|>system\nBe helpful.<|im_end|>\n<|im_start|>user\nHi <b> & 'you' <|im_end|>\n",
    );
    let turns = messages(&[USER, ("tool", "1"), ("tool", "2")]);
    let expected = r#"<|im_start|>system
Be helpful.

# Tools

<tools>
{"type": "function", "function": {"name": "get_weather", "description": "It's <i>é</i>", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"], "max": 1.0, "strict": true, "none": null, "empty": [], "eo": {}}}}
</tools>

Answer with {"name": <name>, "arguments": <object>}<|im_end|>
<|im_start|>user
Hi <b> & 'you' <|im_end|>
<|im_start|>user
<tool_response>
1
</tool_response>
<tool_response>
2
</tool_response><|im_end|>
<|im_start|>assistant
"#;
    let tools = extra(json!({"tools": weather_tool()}));
    assert_eq!(style!("qwen2").render(&turns, true, Some(&tools)).unwrap(), expected);
}

#[test]
fn qwen3_style() {
    check(
        &style!("qwen3"),
        "<|im_start|>system\n Be brief. <|im_end|>\n<|im_start|>user\nHi <b> & 'you' <|im_end|>\n\
         <|im_start|>assistant\nHello <|im_end|>\n<|im_start|>user\nBye 😀<|im_end|>\n<|im_start|>assistant\n",
        "<|im_start|>user\nHi <b> & 'you' <|im_end|>\n",
    );
    let off = extra(json!({"enable_thinking": false}));
    assert_eq!(
        style!("qwen3").render(&messages(&CONVERSATION[..3]), true, Some(&off)).unwrap(),
        "<|im_start|>system\n Be brief. <|im_end|>\n<|im_start|>user\nHi <b> & 'you' <|im_end|>\n\
         <|im_start|>assistant\n<think>\nhm\n</think>\n\nHello <|im_end|>\n\
         <|im_start|>assistant\n<think>\n\n</think>\n\n"
    );
}

#[test]
fn smollm2_style() {
    check(
        &style!("smollm2"),
        "<|im_start|>system\n Be brief. <|im_end|>\n<|im_start|>user\nHi <b> & 'you' <|im_end|>\n\
         <|im_start|>assistant\n<think>\nhm\n</think>\n\nHello <|im_end|>\n<|im_start|>user\nBye 😀<|im_end|>\n\
         <|im_start|>assistant\n",
        "<|im_start|>system\nYou are small.<|im_end|>\n<|im_start|>user\nHi <b> & 'you' <|im_end|>\n",
    );
}

#[test]
fn deepseek_distill_style() {
    check(
        &style!("deepseek"),
        "<s> Be brief. <｜User｜>Hi <b> & 'you' <｜Assistant｜>\n\nHello <｜end▁of▁sentence｜>\
         <｜User｜>Bye 😀<｜Assistant｜><think>\n",
        "<s><｜User｜>Hi <b> & 'you' ",
    );
}

#[test]
fn bitnet_style() {
    check(
        &style!("bitnet"),
        "<s>System: Be brief.<|eot_id|>User: Hi <b> & 'you'<|eot_id|>\
         Assistant: <think>\nhm\n</think>\n\nHello<|eot_id|>User: Bye 😀<|eot_id|>Assistant: ",
        "<s>User: Hi <b> & 'you'<|eot_id|>",
    );
}

#[test]
fn generation_tags_print_their_inside() {
    check(
        &style!("generation"),
        "<u> Be brief. </u>\n<u>Hi <b> & 'you' </u>\n<a>\n<think>\nhm\n</think>\n\nHello </s>\n</a>x\n<u>Bye 😀</u>\n",
        "<u>Hi <b> & 'you' </u>\n",
    );
    assert_eq!(
        plain_generation("{%generation%}{% x %}{%+ endgeneration -%} {% gen"),
        "{% with %}{% x %}{%+ endwith -%} {% gen"
    );
}

#[test]
fn constructs_print_as_under_python() {
    let cases = [
        (
            r#"{{ tools }} {{ true }} {{ [1, 'a', none, 1.5, {'k': "it's"}] }}"#,
            r#"None True [1, 'a', None, 1.5, {'k': "it's"}]"#,
        ),
        ("{{ missing }}|{{ messages[0].missing }}|{{ 'x' if false }}|", "|||"),
        ("{% for k, v in {'a':1,'b':2}.items() %}{{k}}={{v}};{% endfor %}", "a=1;b=2;"),
        ("{{ {'a':1}.items()|list }}{{ {'a':1}.keys()|list }}{{ {'a':1}.get('b', 2) }}", "[('a', 1)]['a']2"),
        ("{{ 'abc'[::-1] }}{{ [1,2,3][::-1] }}{{ [1,2,3][1:] }}{{ 'abc'[:-1] }}", "cba[3, 2, 1][2, 3]ab"),
        ("{{ 'a b  c'.split() }}{{ 'a,b,c'.split(',', 1) }}{{ 'a,b'.split(',')[-1] }}", "['a', 'b', 'c']['a', 'b,c']b"),
        (
            "{{'x'.upper()}}{{'x y'.title()}}{{ 'abc'.find('c') }}{{'a-b'.replace('-','+')}}{{ ' x '.strip() }}",
            "XX Y2a+bx",
        ),
        (
            "{% for i in range(6) %}{% if i == 1 %}{% continue %}{% endif %}{% if i == 4 %}{% break %}{% endif %}{{ i }}{% endfor %}",
            "023",
        ),
        ("{{ {'b': 1, 'a': [1, 2]} | tojson(indent=2) }}", "{\n  \"b\": 1,\n  \"a\": [\n    1,\n    2\n  ]\n}"),
        ("{{ {'b': 1, 'a': 'é'} | tojson(sort_keys=true, ensure_ascii=true) }}", r#"{"a": "\u00e9", "b": 1}"#),
        ("{{ [1,{'a':2}] | tojson(separators=(',', ':')) }}{{ [] | tojson(indent=2)}}", r#"[1,{"a":2}][]"#),
        (
            "{{ {'a':{}}|tojson(indent='\t') }}{{ messages[0]|tojson }}",
            "{\n\t\"a\": {}\n}{\"role\": \"system\", \"content\": \" Be brief. \"}",
        ),
        ("{{ 3 / 2 }} {{ 4 / 2 }} {{ 7 // 2 }}", "1.5 2.0 3"),
        ("{{ messages | map(attribute='role') | join(',') }}", "system,user,assistant,user"),
        ("{{ messages | selectattr('role','equalto','user') | list | length }}", "2"),
        ("{% macro f(x, y=2) %}{{ x }}{{ y }}{% endmacro %}{{ f(1) }}\n\nend\n", "12\n\nend"),
        ("{{ messages[-1]['content'] }}{{ messages[0].get('name', 'n') }}", "Bye 😀n"),
        ("{{ messages[0]['role'] in ['system','user'] }}{{ 'name' in messages[0] }}", "TrueFalse"),
        ("{% set x = 'a' -%}  {{ x }}  {#- c -#}  b", "ab"),
        ("{{ messages[99] is defined }}{{ messages | length }}{{ messages[0] is mapping }}", "False4True"),
        ("{{ messages is iterable }}{{ 'x' is string }}{{ 1 is number }}{{ none is none }}", "TrueTrueTrueTrue"),
        (
            "{{ 'é' | upper }}{{ '  x ' | trim }}|{{ [3,1] | sort | first }}|{{ {'a': 1} | dictsort }}",
            "Éx|1|[('a', 1)]",
        ),
        ("{{ 'abc' | string | length }}{{ 1.0 }}{{ '5' | int + 1 }}{{ x | default('d') }}", "31.06d"),
        ("{{ bos_token ~ 1 ~ eos_token }}{{ '<' | e }}", "<s>1</s>&lt;"),
    ];
    for (source, expected) in cases {
        match render(source) {
            Ok(text) => assert_eq!(text, expected, "{source}"),
            Err(e) => panic!("{source}: {e}"),
        }
    }
}

#[test]
fn the_date_is_todays() {
    assert_eq!(render("{{ strftime_now('%Y') }}").unwrap(), chrono::Local::now().format("%Y").to_string());
    let Err(e) = render("{{ strftime_now('%Q%') }}") else { panic!("accepted") };
    assert!(e.to_string().contains("no valid time format"), "{e}");
}

#[test]
fn a_refused_conversation_is_the_requests_fault() {
    let turns = messages(&[USER, ("user", "again")]);
    let Err(e) = style!("llama2").render(&turns, true, None) else { panic!("accepted") };
    assert!(matches!(e, Error::Request(_)));
    let expected = "the chat template refuses the conversation: Roles must go user, assistant, user, assistant, …";
    assert_eq!(e.to_string(), expected);
    // The words come through macros too, as one line.
    let Err(e) = render("{% macro f() %}{{ raise_exception('a\nb') }}{% endmacro %}{{ f() }}") else {
        panic!("accepted")
    };
    assert_eq!(e.to_string(), "the chat template refuses the conversation: a b");
}

#[test]
fn broken_templates_are_refused_in_one_line() {
    for source in ["{% if %}", "{{ 'a", "{% for x in %}", "{% endgeneration %}", "{% generation %}"] {
        let Err(e) = ChatTemplate::new(source, None, None, "m/t.json") else { panic!("accepted {source}") };
        let line = e.to_string();
        assert!(line.starts_with("m/t.json: chat template: ") && !line.contains('\n'), "{line}");
    }
    for source in
        ["{{ missing.x }}", "{{ messages.strip() }}", "{{ 1 + 'a' }}", "{{ missing | tojson }}", "{% include 'x' %}"]
    {
        let Err(e) = render(source) else { panic!("accepted {source}") };
        let line = e.to_string();
        assert!(line.starts_with("t: chat template: ") && !line.contains('\n'), "{line}");
    }
}

#[test]
fn hostile_templates_end() {
    let endless = [
        "{% set ns = namespace(x=[]) %}{% for a in range(99999) %}{% set ns.x = [ns.x] %}{% endfor %}{{ ns.x }}",
        "{% set ns = namespace(x=[]) %}{% for a in range(90) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x }}",
        "{% set ns = namespace(x=range(99999)|list) %}{% for a in range(90) %}{% set ns.x = [ns.x] %}{% endfor %}{{ ns.x | tojson(indent=255) }}",
        "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
        "{% for a in range(99999) %}{{ 'x' * 100000 }}{% endfor %}",
        "{% set ns = namespace(x='xxxxxxxx') %}{% for a in range(99) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
        "{{ 'x' * 99999999999 }}",
        "{{ ('x' * 1000000) | tojson(indent=200) }}{% for a in range(999) %}{{ range(9999)|list|tojson(indent=200) }}{% endfor %}",
    ];
    for source in endless {
        let start = std::time::Instant::now();
        let Err(e) = render(source) else { panic!("accepted {source}") };
        assert!(start.elapsed().as_secs() < 20, "{source}: {:?}", start.elapsed());
        assert!(e.to_string().starts_with("t: chat template: "), "{source}: {e}");
    }
    // As deep as the fuel lasts.
    for (open, close) in [("[", "]"), ("{'a': ", "}"), ("(", ",)"), ("namespace(x=", ")")] {
        let nest = open.repeat(60) + "ns.x" + &close.repeat(60);
        let loops = format!("{{% for a in range(99999) %}}{{% set ns.x = {nest} %}}{{% endfor %}}");
        let Err(e) = render(&format!("{{% set ns = namespace(x=1) %}}{loops}")) else { panic!("accepted") };
        assert!(e.to_string().contains("does not end"), "{e}");
    }
    let Err(e) = render("{% macro f(x) %}{{ f(x) }}{% endmacro %}{{ f(1) }}") else { panic!("accepted") };
    assert!(e.to_string().contains("recursion"), "{e}");
    let deep = "(".repeat(100_000);
    assert!(ChatTemplate::new(&format!("{{{{ {deep} }}}}"), None, None, "t").is_err());
}

#[test]
fn a_long_conversation_fits() {
    let long: Vec<Message> =
        (0..2000).map(|i| Message::new(if i % 2 == 0 { "user" } else { "assistant" }, "word ".repeat(100))).collect();
    for template in [style!("llama2"), style!("llama3"), style!("qwen2"), style!("qwen3"), style!("deepseek")] {
        assert!(template.render(&long, true, None).unwrap().len() > 900_000);
    }
}

#[test]
fn templates_are_found() {
    let find = |config: Option<serde_json::Value>, jinja| {
        let config = config.map(|config| config.to_string());
        ChatTemplate::find(config.as_deref().map(str::as_bytes), jinja, "m")
    };
    let text = |template: Result<Option<ChatTemplate>>, tools: serde_json::Value| {
        template.unwrap().unwrap().render(&[], false, Some(&extra(json!({"tools": tools})))).unwrap()
    };
    assert!(find(None, None).unwrap().is_none());
    assert!(find(Some(json!({"bos_token": null})), None).unwrap().is_none());
    let one = json!({"bos_token": {"content": "<b>"}, "eos_token": "</b>", "chat_template": "one {{ bos_token }}{{ eos_token }}"});
    assert_eq!(text(find(Some(one.clone()), None), json!(null)), "one <b></b>");
    assert_eq!(text(find(Some(one), Some("file {{ bos_token }}")), json!(null)), "file <b>", "the file wins");
    assert_eq!(text(find(None, Some("{{ bos_token is defined }}")), json!(null)), "False");

    let named = json!({"chat_template": [
        {"name": "tool_use", "template": "with {{ tools | length }}"}, {"name": "default", "template": "without"}]});
    assert_eq!(text(find(Some(named.clone()), None), json!(null)), "without");
    assert_eq!(text(find(Some(named.clone()), None), json!([])), "without");
    assert_eq!(text(find(Some(named), None), weather_tool()), "with 1");

    let Err(e) = find(Some(json!({"chat_template": [{"name": "rag", "template": ""}]})), None) else {
        panic!("accepted")
    };
    assert_eq!(e.to_string(), "m: chat_template: none of the templates [rag] is named `default`");
    assert!(find(Some(json!({"chat_template": 7})), None).is_err());
    assert!(ChatTemplate::find(Some(b"{"), None, "m").is_err());
}
