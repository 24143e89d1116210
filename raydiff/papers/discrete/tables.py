"""The tables of Wei et al. (TMLR 2024, arXiv 2310.15524), appendix H.1: Adult, German Credit and Loan.

The paper's: which columns, at most k categories in each (5, 5 and 4), the sizes 30,718 x 9, 1,000 x 10 and 480 x 11,
that numbers are cut into intervals and values such as those of education are put together, and that the label is a
condition, not a column. Ours, since it does not print them: every edge and every group below, and that rows with a
missing value are dropped (which gives its sizes: 1,843 rows of Adult's training file have no occupation, 480 of the 614
rows of Loan are complete). Its appendix G describes another loan table, of 500 rows; the columns are those of this one.

Edges, groups and classes are round numbers, meanings and code books, written down here and taken from no rows: so no
mechanism need account for them.
"""

from collections.abc import Mapping, Sequence

from raydiff.data.tables.code_books import CodeBook


def _each(*values: str) -> Mapping[str, Sequence[str]]:
    """A category for each of these values."""
    return {value: (value,) for value in values}


ADULT = CodeBook(
    files=("adult/train.csv", "adult/test.csv"),
    label="income",
    classes=("<=50K", ">50K"),
    bins=5,
    read={
        "age": (25, 35, 45, 55),
        "workclass": {
            "Private": ("Private",),
            "Self-employed": ("Self-emp-inc", "Self-emp-not-inc"),
            "Government": ("Federal-gov", "Local-gov", "State-gov"),
            "Unpaid": ("Without-pay", "Never-worked"),
        },
        "education": {
            "No diploma": ("Preschool", "1st-4th", "5th-6th", "7th-8th", "9th", "10th", "11th", "12th"),
            "HS-grad": ("HS-grad",),
            "Some college": ("Some-college", "Assoc-acdm", "Assoc-voc"),
            "Bachelors": ("Bachelors",),
            "Advanced": ("Masters", "Prof-school", "Doctorate"),
        },
        "marital-status": {
            "Married": ("Married-civ-spouse", "Married-AF-spouse"),
            **_each("Never-married", "Divorced"),
            "Separated": ("Separated", "Married-spouse-absent"),
            "Widowed": ("Widowed",),
        },
        "occupation": {
            "Professional": ("Exec-managerial", "Prof-specialty", "Tech-support"),
            "Office": ("Adm-clerical", "Sales"),
            "Service": ("Other-service", "Protective-serv", "Priv-house-serv", "Armed-Forces"),
            "Craft": ("Craft-repair",),
            "Manual": ("Farming-fishing", "Handlers-cleaners", "Machine-op-inspct", "Transport-moving"),
        },
        "relationship": {
            **_each("Husband", "Wife", "Own-child", "Not-in-family"),
            "Other family": ("Unmarried", "Other-relative"),
        },
        "race": _each("Amer-Indian-Eskimo", "Asian-Pac-Islander", "Black", "Other", "White"),
        "sex": _each("Female", "Male"),  # the paper says gender
        "hours-per-week": (30, 40, 41, 50),
    },
)
GERMAN = CodeBook(
    files=("german/german.csv",),
    label="class",
    classes=("1", "2"),
    bins=5,
    read={
        "checking_status": _each("A11", "A12", "A13", "A14"),
        "duration": (12, 18, 24, 36),
        "credit_history": _each("A30", "A31", "A32", "A33", "A34"),
        "purpose": {
            "Car": ("A40", "A41"),
            "Household": ("A42", "A44", "A45"),
            "Radio or television": ("A43",),
            "Business": ("A49",),
            "Education or other": ("A46", "A47", "A48", "A410"),
        },
        "credit_amount": (1500, 2500, 4000, 7000),
        "savings_status": _each("A61", "A62", "A63", "A64", "A65"),
        "employment": _each("A71", "A72", "A73", "A74", "A75"),
        "personal_status": _each("A91", "A92", "A93", "A94"),
        "age": (25, 30, 40, 50),
        "job": _each("A171", "A172", "A173", "A174"),
    },
)
LOAN = CodeBook(
    files=("loan/loan.csv",),
    label="Loan_Status",
    classes=("N", "Y"),
    bins=4,
    read={
        "Gender": _each("Female", "Male"),
        "Married": _each("No", "Yes"),
        "Dependents": _each("0", "1", "2", "3+"),
        "Education": _each("Graduate", "Not Graduate"),
        "Self_Employed": _each("No", "Yes"),
        "ApplicantIncome": (2500, 4000, 6000),
        "CoapplicantIncome": (1, 1500, 2500),
        "LoanAmount": (100, 130, 170),
        "Loan_Amount_Term": (180, 360, 361),
        "Credit_History": _each("0", "1"),
        "Property_Area": _each("Rural", "Semiurban", "Urban"),
    },
)
